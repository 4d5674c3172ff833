"""Texts and the tokens that spell them, for both programs that cut a text at its tokens: the chat and the page."""

CUT_CASES = [
    ("def read", ["def", " read"], ["def", " read"]),
    ("", [], []),
    ("left", [], ["left"]),  # shown before its token counts: it may still become a stop string
    ("hé ok", ["h", "\ufffd", "\ufffd", " ok"], ["h", "", "é", " ok"]),  # a character in two tokens
    ("h", ["h", "\ufffd"], ["h", ""]),  # the rest of the character is to come
    ("end", ["end", ""], ["end", ""]),  # an end token spells nothing
    ("o more", ["hello", " more"], ["o", " more"]),  # its beginning was shown with the token before
    ("a\n\nb", ["a", "\n\n", "b"], ["a", "\n\n", "b"]),
    ("x" * 40 + "y", ["y", "x" * 40, "y"], ["", "x" * 40, "y"]),  # no far match
    ("😀!", ["\ufffd", "\ufffd\ufffd", "!"], ["", "😀", "!"]),
]
