"""Our results: records of a paper's runs, their values, and their match with the printed numbers."""
