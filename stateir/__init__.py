"""stateir: a compiler for recurrent state updates."""
