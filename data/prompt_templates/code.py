"""Code: small functions, mostly Python, and questions about short snippets."""

from .core import Category, bullets, parts

TEMPLATES = {
    "function": "Write a Python function that {task}.",
    "with-example": "Write a short Python function that {task}, and show one example call.",
    "one-liner": "Is there a simple way in Python to write code that {task}?",
    "named": "Define a function called `{fname}` that {task}. Use Python.",
    "javascript": "Write a JavaScript function that {task}.",
    "docstring": "I need a Python function that {task}. Add a docstring and type hints.",
    "explain-it": "Show me Python code that {task}, then explain it in one or two sentences.",
    "loop": "Using a loop, write Python code that {task}.",
    "tests": "Write two assert statements to test a Python function that {task}.",
    "no-imports": "Without importing anything, write a function that {task}.",
    "beginner": "I'm learning to program. How do I write a function that {task}?",
    "pseudocode": "Give me pseudocode for a program that {task}.",
    "what-prints": "What does this Python code print?\n\n```python\n{snippet}\n```",
    "explain-code": "Explain this code in two sentences:\n\n```python\n{snippet}\n```",
    "comment-code": "Add a short comment to each line of this code.\n\n```python\n{snippet}\n```",
    "two-tasks": "Write two small Python functions: one that {task}, and one that {task2}.",
    "rename": "Rewrite this with clearer variable names:\n```\n{snippet}\n```",
}

HELDOUT_TEMPLATES = {
    "class-method": "Sketch a small Python class with a method that {task}.",
    "interview": "In a job interview I was asked for code that {task}. What would a good answer look like?",
    "bug-hunt": "Could anything go wrong when this runs?\n\n{snippet}",
    "edge-cases": "Which edge cases matter for a function that {task}? Then write it.",
}

TASKS = parts("""
checks whether a number is prime; reverses a string; counts the vowels in a sentence; finds the
largest number in a list; adds up the digits of an integer; converts Celsius to Fahrenheit;
returns the factorial of n; prints the first n Fibonacci numbers; checks whether a word is a
palindrome; removes duplicates from a list; sorts a list of names by length; merges two
dictionaries; counts how often each word appears in a text; finds the second smallest value in a
list; returns the average of a list of numbers; capitalizes every word in a sentence; checks
whether two words are anagrams; flattens a nested list; swaps the keys and values of a dictionary;
reads a text file and counts its lines; removes all spaces from a string; finds the longest word
in a sentence; rounds a price to two decimals; returns the even numbers from a list; squares every
number in a list; checks whether a year is a leap year; converts minutes to hours and minutes;
generates a random password; rolls two dice and adds them; prints a multiplication table; prints a
triangle of stars; counts down from ten to zero; computes the area of a circle; computes the
distance between two points; finds the greatest common divisor of two numbers; converts a decimal
number to binary; splits a list into chunks of three; rotates a list by one position; finds the
index of an item in a list; checks whether a list is sorted; replaces every comma in a text with a
semicolon; extracts the numbers from a string; checks whether a password has at least eight
characters; counts the uppercase letters in a string; returns the last element of a list; joins a
list of words with dashes; zips two lists into pairs; computes simple interest; adds sales tax to
a price; calculates a tip; converts miles to kilometers; converts a letter grade to a number;
finds the most common character in a string; removes vowels from a word; truncates a long string
and adds three dots; checks whether a string contains only digits; validates an email address in a
simple way; parses a date written as year-month-day; returns the day of the week for a date;
counts the days between two dates; writes a list of names to a file; reads a CSV file and prints
the first column; loads a JSON file; deletes empty lines from a text; renames files in a folder;
groups words by their first letter; builds a dictionary from two lists; finds the keys shared by
two dictionaries; sorts a dictionary by value; inverts a boolean; keeps a shopping list; simulates
a coin toss; guesses a secret number; plays rock, paper, scissors; shuffles a deck of cards; picks
a random winner from a list; does a binary search; does a bubble sort; implements a stack;
implements a queue; counts the nodes of a linked list; computes the power of a number without the
built-in operator; sums all odd numbers up to n; finds all divisors of a number; checks for a
perfect square; converts Roman numerals to integers; spells a digit as a word; encodes a message
with a Caesar cipher; repeats a string n times; centers a title in a line of forty characters;
pads a number with zeros; transposes a small matrix; adds two matrices; computes the dot product
of two vectors; finds the median of a list; computes the range of a data set; clamps a value
between two limits; returns the absolute difference of two numbers; swaps two variables; checks
whether a number is positive, negative or zero; finds missing numbers from 1 to n; moves all zeros
to the end of a list; finds pairs that add up to ten; compares two lists; measures how long a
function takes; retries a failing call three times; prints the current date and time; asks the
user for a name and greets them; draws a small square with characters; formats a phone number;
masks all but the last four digits of a card number; counts sentences in a paragraph; translates a
word into pig latin; filters out words shorter than four letters; finds the shortest path length
in a grid; caches the results of slow calls
""")

FUNCTION_NAMES = parts("solve; run; process; compute; helper; transform; make_result; do_task; answer; handle")

SNIPPETS = (
    "total = 0\nfor n in [1, 2, 3, 4]:\n    total += n\nprint(total)",
    "words = ['red', 'green', 'blue']\nprint([w.upper() for w in words])",
    "x = 10\nwhile x > 0:\n    x -= 3\nprint(x)",
    "def f(a, b=2):\n    return a * b\n\nprint(f(3), f(3, 4))",
    "ages = {'ann': 30, 'bob': 25}\nfor k, v in ages.items():\n    print(k, v)",
    "s = 'banana'\nprint(s.count('a'), s.find('n'))",
    "a = [3, 1, 2]\nb = sorted(a)\nprint(a, b)",
    "for i in range(2, 10, 3):\n    print(i)",
    "p = (4, 5)\nx, y = p\nprint(x + y)",
    "try:\n    print(10 / 0)\nexcept ZeroDivisionError:\n    print('oops')",
    "q = [1, 2, 3]\nq.append(q.pop(0))\nprint(q)",
    "def g(n):\n    return 1 if n == 0 else n * g(n - 1)\n\nprint(g(4))",
    "t = 'a,b,c'.split(',')\nprint('-'.join(reversed(t)))",
    "c = set([1, 2, 2, 3])\nprint(len(c), 2 in c)",
    "m = [[1, 2], [3, 4]]\nprint(sum(m[0]) + m[1][1])",
    "v = 7\nif v % 2:\n    print('odd')\nelse:\n    print('even')",
    "name = 'sam'\nprint(name[0].upper() + name[1:])",
    "z = [i * i for i in range(5) if i % 2 == 0]\nprint(z)",
    "d = {}\nfor ch in 'hello':\n    d[ch] = d.get(ch, 0) + 1\nprint(d)",
    "a = [1, 2]\nb = a\nb.append(3)\nprint(len(a))",
    "print(max('pear', 'fig', 'apple', key=len))",
    "r = 1\nfor _ in range(5):\n    r *= 2\nprint(r)",
    "k = lambda t: t[1]\nprint(sorted([(1, 9), (2, 4)], key=k))",
    "e = enumerate(['x', 'y'])\nprint(dict(e))",
    "class Dog:\n    def speak(self):\n        return 'woof'\n\nprint(Dog().speak())",
    "def evens(n):\n    for i in range(n):\n        if i % 2 == 0:\n            yield i\n\nprint(list(evens(7)))",
    "h = 'one two three'\nprint(len(h.split()))",
    "u = [5, 6, 7, 8]\nprint(u[1:3], u[-1])",
    "print(all([1, 2, 0]), any([0, 0, 3]))",
    "w = 3\nw, o = w + 1, w\nprint(w, o)",
    "import math\nprint(math.sqrt(16) + math.floor(2.7))",
    "n = 234\nwhile n:\n    print(n % 10)\n    n //= 10",
    "g = {'a': [1], 'b': [2, 3]}\nprint(sum(len(x) for x in g.values()))",
    "i = '5'\nprint(i * 3, int(i) * 3)",
    "l = list(zip([1, 2, 3], 'abc'))\nprint(l[-1])",
    "f = open('notes.txt')\ndata = f.read()\nprint(data[:10])",
)

HAND_TRAIN = bullets("""
- How do I center a div in CSS? Just show me the code.
- Write an SQL query that returns the five newest orders from a table called orders.
- What is the difference between a list and a tuple in Python?
- My Python script says "IndentationError: expected an indented block". What does that mean and
  how do I fix it?
- Write a bash command that finds every .log file larger than 10 MB.
- Make an HTML form with a name field, an email field and a submit button.
- How do I undo my last git commit without losing the changes?
- Write a Python decorator that prints the name of the function being called.
- Show a simple try/except example for reading a number from the user.
- What does the `self` parameter do in a Python class?
- Write a regular expression for a US zip code and explain it.
- Convert this into a list comprehension: result = []; for x in nums: if x > 3: result.append(x)
""")

HAND_HELDOUT = bullets("""
- Write an SQL query that counts customers per country.
- How can I make a button turn blue when the mouse is over it? CSS only.
- What's the difference between == and === in JavaScript?
- My loop never stops: i = 0; while i < 5: print(i). What did I forget?
- Write a tiny Flask app that says hello on the home page.
- Show me how to use a dataclass for a book with a title, an author and a price.
- How do I create a new git branch and switch to it?
- Write a C function that returns the bigger of two ints.
""")

CATEGORY = Category(
    "code",
    TEMPLATES,
    HELDOUT_TEMPLATES,
    {"task": TASKS, "snippet": SNIPPETS},
    {"fname": FUNCTION_NAMES},
    HAND_TRAIN,
    HAND_HELDOUT,
)
