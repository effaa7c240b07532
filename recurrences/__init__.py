"""The standard library of rules, one .rule file each; `stateir.load(name)` reads them."""
