"""What a run leaves on disk: schema, writer, reader, provenance, searches."""
