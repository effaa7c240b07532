"""Write stateir.tmLanguage.json, the TextMate grammar: python docs/editor/generate.py"""

from pathlib import Path

from stateir.editor.textmate import grammar

if __name__ == "__main__":
    Path(__file__).with_name("stateir.tmLanguage.json").write_text(grammar())
