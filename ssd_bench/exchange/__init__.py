"""Export of records to the formats of other tools, and comparison of their counts with ours."""
