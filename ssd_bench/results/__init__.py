"""Numbers with intervals from the tables of a record, each defined once in `quantities.yaml`."""
