"""One decoder and one cache, and what runs their passes."""
