"""Records of runs on disk: schema, header, writer, reader, provenance, searches."""
