"""Records of runs on disk: schema, writer, reader, provenance, searches."""
