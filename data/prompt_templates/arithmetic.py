"""Arithmetic: short word problems."""

from .core import Category, bullets, parts
from .shared import CITIES, NAMES

TEMPLATES = {
    "give-away": ("{name} has {large} {item} and gives {small} of them to {name2}. How many {item} does {name} have left?"),
    "boxes": "There are {small} boxes with {mid} {item} in each box. How many {item} are there in all?",
    "buy-change": ("{name} buys {small} {item} at ${small2} each and pays with a ${bill} bill. How much change does {name} get?"),
    "share": (
        "{name} wants to share {dozens} {item} equally among {divisor} friends. How many does each friend get? Show your work."
    ),
    "drive": ("A bus leaves {city} at {speed} miles per hour and drives for {hours} hours without stopping. How far does it go?"),
    "percent-off": "A set of {item} costs ${price} and is on sale for {percent}% off. What is the sale price?",
    "collect": (
        "{name} collects {item}. On {day} there were {mid}, and every week {small} more are added. How "
        "many are there after {hours} weeks?"
    ),
    "compare": "{name} has {mid} {item}. {name2} has {small} times as many. How many do they have together?",
    "pages": "{name} reads {mid} pages a day. How many days will a book of {pages} pages take? Explain each step.",
    "wages": (
        "{name} works in a shop in {city} for ${mid} an hour, {hours} hours a day, {small} days a week. What is the weekly pay?"
    ),
    "rectangle": "{name}'s garden is {mid} feet long and {small} feet wide. What are its area and its perimeter?",
    "two-kinds": (
        "At the market in {city}, {item} cost ${small} each and {item2} cost ${small2} each. How much do "
        "{n} of each cost in total?"
    ),
    "remaining": (
        "A shop starts the day with {large} {item}. It sells {mid} before lunch and {small} after lunch. How many are left?"
    ),
    "recipe": (
        "A recipe for {small} people uses {cups} cups of flour. {name} is cooking for twice as many "
        "people. How much flour is needed?"
    ),
    "savings": (
        "{name} saves ${mid} a month to buy {item} that cost ${price}. After how many months is there "
        "enough money? Think step by step."
    ),
    "average": "{name} counted {item} on three days: {mid}, {mid2} and {mid3}. What is the average number per day?",
    "half": ("Half of the {dozens} {item} in {name}'s store are red, and a third are blue. How many are some other color?"),
}

HELDOUT_TEMPLATES = {
    "lost-found": "After losing {small} {item} and finding {mid}, {name} has {large}. How many were there at first?",
    "tickets": (
        "A ferry near {city} takes {mid} cars on each trip and makes {small} trips a day. {name} counts "
        "the cars for {hours} days. What is the count?"
    ),
    "weigh": ("One crate of {item} weighs {mid} pounds. {name}'s van can carry {price} pounds. How many full crates fit?"),
    "ages": "{name} is {small} years older than {name2}, who is {mid}. How old will {name} be in {hours} years?",
}

ITEMS = parts("""
apples; marbles; stickers; pencils; cookies; balloons; oranges; stamps; seashells; tickets;
postcards; muffins; bottles; notebooks; candles; roses; tomatoes; eggs; toy cars; buttons; coins;
crayons; cupcakes; lemons; magnets; mugs; peaches; puzzles; ribbons; sandwiches; scarves; tulips;
umbrellas; walnuts; bagels; beads; bricks; chairs; cherries; comics; donuts; envelopes; feathers;
flags; flowerpots; game cards; gloves; hats; jars of honey; kites; lamps; lollipops; mangoes;
maps; napkins; paintbrushes; pears; pies; pillows; plates; plums; posters; potatoes; pumpkins;
rulers; socks; spoons; stones; strawberries; teacups; tennis balls; tiles; towels; T-shirts;
whistles; wooden blocks; yo-yos; acorns; badges; baskets; batteries; bells; blankets; bookmarks;
bracelets; carrots; dice; erasers; key rings; melons
""")


def numbers(first: int, last: int, step: int = 1) -> tuple[str, ...]:
    return tuple(str(n) for n in range(first, last + 1, step))


# Ranges keep the problems sensible: small < mid < large, and dozens share out evenly.
DETAILS = {
    "small": numbers(3, 9),
    "mid": numbers(11, 38),
    "large": numbers(52, 140),
    "hours": numbers(2, 8),
    "dozens": numbers(24, 120, 12),
    "divisor": ("2", "3", "4", "6", "12"),
    "bill": ("100",),
    "percent": ("10", "15", "20", "25", "30", "40", "50"),
    "price": numbers(60, 240, 20),
    "speed": numbers(40, 65, 5),
    "pages": numbers(150, 400, 10),
    "n": ("two", "three", "four", "five"),
    "cups": ("1.5", "2", "2.5", "3", "4"),
    "day": parts("Monday; Tuesday; Friday; Sunday"),
}

HAND_TRAIN = bullets("""
- A pizza is cut into 8 slices. Three people each eat 2 slices. What fraction of the pizza is
  left?
- If it is 10:40 now and my train leaves in 95 minutes, what time does it leave?
- My phone plan costs $35 a month plus $10 for every extra gigabyte. I used 3 extra. What is my
  bill?
- A farmer has chickens and cows: 10 heads and 28 legs in total. How many cows does he have?
- Split a $84 restaurant bill between four people and add a 15% tip. How much does each pay?
- What is 17 times 6? Show how you can work it out in your head.
- The temperature was -4 degrees in the morning and rose 11 degrees by noon. What was it at noon?
- I run 3 miles on weekdays and 5 miles on each weekend day. How many miles do I run in two weeks?
- A car uses 7 gallons for 210 miles. How many gallons does it need for 300 miles?
- A room is 12 feet by 9 feet. Carpet costs $4 per square foot. What will it cost to carpet the
  room?
- Grandma is 72. She is three times as old as my cousin. How old was she when my cousin was born?
- A class of 30 has 12 boys. What percent of the class are girls?
""")

HAND_HELDOUT = bullets("""
- A tank holds 500 liters and leaks 8 liters every hour. How much is left after a full day?
- If 5 workers paint a wall in 6 hours, how long would 3 workers take at the same pace?
- My rent went up from $900 to $990. What percentage increase is that?
- A snail climbs 3 feet each day and slips back 1 foot each night. How high is it after four days
  and nights?
- We left home at 7:50 and arrived at 10:15. How long was the trip?
- The sum of two numbers is 41 and their difference is 9. What are the two numbers?
- A movie is 2 hours and 12 minutes long. How many minutes is that, and when does it end if it
  starts at 6:30?
- I have quarters and dimes worth $2.00 altogether, and four of them are quarters. How many dimes
  is that?
""")

CATEGORY = Category(
    "arithmetic",
    TEMPLATES,
    HELDOUT_TEMPLATES,
    {"item": ITEMS, "name": NAMES, "city": CITIES},
    DETAILS,
    HAND_TRAIN,
    HAND_HELDOUT,
)
