"""Numbers, settings and features printed in the papers, and their folders."""
