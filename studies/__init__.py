"""Code that makes committed files and is never imported at run time; see README.md."""
