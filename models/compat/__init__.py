"""Other libraries' names and signatures on stateir's operators, for moving a model over without editing its calls."""
