"""`stateir play`: a local page that compiles a rule as it is typed and shows what its memory keeps."""
