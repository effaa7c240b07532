"""What editors and notebooks use: patterns for colours, hover, completion, the language server, HTML.

Everything but `server.py` (needs pygls) and `lexer.py` (needs Pygments) is pure functions of a text and a place in it.
"""
