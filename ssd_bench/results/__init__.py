"""Numbers with intervals from the tables of a record; `quantities.yaml` defines each in one place."""
