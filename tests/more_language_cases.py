"""More texts, and the findings that each should get: code, line, column, and a rewrite where one is offered."""

HEAD = (
    "rule x\ninput q: key, k: key, v: value, w: value\n"
    "input b: key in [0, 1], g: key in (-inf, 0], c: scalar in (0, 1), th: pair\n"
)
READ = "read o = q @ S\n"

# name, lines after the head, findings as (code, line, column, rewrite)
CASES = [
    ("log of S", "update S += outer(k, log(k @ S))\n" + READ, [("E301", 4, 22, "k @ S")]),
    ("softmax by hand", "update S += outer(k, v / (1 + k @ S))\n" + READ, [("E301", 4, 22, "v")]),
    ("square of a read", "update S += outer(k, (k @ S)^2)\n" + READ, [("E301", 4, 22, "k @ S")]),
    (
        "read times read in the output",
        "update S += outer(k, v)\nread o = (q @ S) * (k @ S)\n",
        [("E302", 5, 10, "q @ S")],
    ),
    ("S times S", "update S = S * S\n" + READ, [("E302", 4, 12, "S")]),
    ("S on the right of a division", "update S = S + outer(k, v) / S\n" + READ, [("E301", 4, 16, "outer(k, v)")]),
    (
        "value decay through a let",
        "let d = exp(-abs(w))\nupdate S = d * S + outer(k, v)\n" + READ,
        [("E304", 5, 12, "S")],
    ),
    (
        "value gate on a sum of reads",
        "update S += outer(k, w * (v + q @ S))\n" + READ,
        [("E304", 4, 22, "w * v + q @ S")],
    ),
    (
        "value factor on the whole line",
        "update S += w * outer(k, v - k @ S)\n" + READ,
        [("E304", 4, 13, "outer(k, v - k @ S)")],
    ),
    ("value factor on a pure write", "update S += w * outer(k, v)\n" + READ, []),
    ("value norm of a read", "update S += outer(k, unit(v - k @ S))\n" + READ, [("E301", 4, 22, "(v - k @ S)")]),
    ("min of a read", "update S += outer(k, min(v, k @ S))\n" + READ, [("E301", 4, 22, "k @ S")]),
    ("forgets S by a scalar", "update S = c * outer(k, v)\n" + READ, [("E306", 4, 12, "S + c * outer(k, v)")]),
    ("minus S", "update S = outer(k, v) - S\n" + READ, [("E404", 4, 12, "outer(k, v) + S")]),
    ("decay 2c - 1", "update S = (2 * c - 1) * S + outer(k, v)\n" + READ, [("E404", 4, 13, "sigmoid(2 * c - 1)")]),
    ("decay k^2", "update S = k^2 * S + outer(k, v)\n" + READ, [("E405", 4, 12, "min(k^2, 1)")]),
    ("1 / c decay", "update S = S / c + outer(k, v)\n" + READ, [("E405", 4, 16, "S * c")]),
    ("decay 1 + c", "update S = (1 + c) * S + outer(k, v)\n" + READ, []),
    ("full-rank write", "update S += abs(outer(k, v))\n" + READ, [("E307", 4, 13, "outer(abs(k), v)")]),
    ("full-rank product", "update S += outer(k, v) * outer(k, v)\n" + READ, [("E307", 4, 27, "outer(k * k, v * v)")]),
    ("outer of two keys", "update S += outer(k, q)\n" + READ, [("E202", 4, 13, "outer(k, v)")]),
    ("outer of two values", "update S += outer(w, v)\n" + READ, [("E202", 4, 13, "outer(k, w)")]),
    ("contract key with value", "update S += outer((k @ v) * k, v)\n" + READ, [("E202", 4, 20, "k")]),
    ("read a key from S", "update S += outer(k, v)\nread o = S @ v\n", [("E207", 5, 10, "q @ S")]),
    ("scalar output", "update S += outer(k, v)\nread o = q @ k\n", [("E207", 5, 10, "(q @ k) * v")]),
    ("sqrt of a gate", "update S += outer(sqrt(b) * k, v)\n" + READ, []),
    ("sqrt of anything", "update S += outer(sqrt(k), v)\n" + READ, [("E403", 4, 24, "max(k, 0)")]),
    ("rsqrt of a square", "update S += outer(rsqrt(k @ k) * k, v)\n" + READ, [("E403", 4, 25, "max(k @ k, 1e-6)")]),
    ("division by a gate", "update S += outer(k / b, v)\n" + READ, [("E403", 4, 23, "max(b, 1e-6)")]),
    ("a guarded division", "update S += outer(k / (k @ k + 1e-6), v)\n" + READ, []),
    (
        "state that may leave its range",
        "state n: scalar in [0, 1]\nupdate n = n + c\nupdate S += outer(k, v)\n" + READ,
        [("E402", 5, 12, "in [0, inf)")],
    ),
    ("state kept in its range", "state n: scalar in [0, 1]\nupdate n = c * n\nupdate S += outer(k, v)\n" + READ, []),
    ("rotate by a key", "update S += outer(rotate(k, q), v)\n" + READ, [("E202", 4, 19, "rotate(k, th)")]),
    ("rotate a value", "update S += outer(k, rotate(v, th))\n" + READ, [("E202", 4, 22, "v")]),
    ("misspelt function", "update S += outer(sigmoyd(k), v)\n" + READ, [("E101", 4, 19, "sigmoid")]),
    (
        "misspelt name",
        "input beta: scalar in (0, 1)\nupdate S += outer(bata * k, v)\n" + READ,
        [("E101", 5, 19, "beta")],
    ),
    ("a call without a function", "update S += k(v)\n" + READ, [("E101", 4, 13, "outer(k, v)")]),
    ("too many arguments", "update S += outer(exp(k, q), v)\n" + READ, [("E212", 4, 19, "exp(k)")]),
    (
        "a missing parenthesis",
        "update S += outer(k, v - k @ S\n" + READ,
        [("E001", 4, 31, "update S += outer(k, v - k @ S)")],
    ),
    ("a stray word", "update S += outer(k, v) please\n" + READ, [("E001", 4, 25, "update S += outer(k, v)")]),
    ("updat", "updat S += outer(k, v)\n" + READ, [("E001", 4, 1, "update S += outer(k, v)")]),
    ("a colon for an equals", "let a: k\nupdate S += outer(k, v)\n" + READ, [("E001", 4, 6, "let a = k")]),
    ("an axis that is none", "input z: query\nupdate S += outer(k, v)\n" + READ, [("E001", 4, 10, "input z: key")]),
    (
        "a range backwards",
        "input z: scalar in (1, 0)\nupdate S += outer(k, v)\n" + READ,
        [("E401", 4, 17, "in (0, 1)")],
    ),
    ("update of an input", "update k += q\nupdate S += outer(k, v)\n" + READ, [("E204", 4, 8, "let k2 = k + q")]),
    (
        "update of a let",
        "let a = k\nupdate a += q\nupdate S += outer(k, v)\n" + READ,
        [("E204", 5, 8, "let a2 = a + q")],
    ),
    ("update of an unknown", "update z += q\nupdate S += outer(k, v)\n" + READ, [("E204", 4, 8, "state  z: key\n")]),
    ("use before definition", "update S += outer(a, v)\nlet a = k\n" + READ, [("E101", 4, 19, "let a = k\n")]),
    (
        "use before declaration",
        "update S += outer(a, v)\ninput a: key, a2: key\n" + READ,
        [("E101", 4, 19, "input a: key, a2: key\n")],
    ),
    (
        "several errors",
        "let a = kk\nlet bb = k + v\nupdate S += outer(k, v) * (S @ v)\n" + READ,
        [("E101", 4, 9, "k"), ("E202", 5, 10, "k"), ("E303", 6, 28, "outer(k, v)")],
    ),
]
