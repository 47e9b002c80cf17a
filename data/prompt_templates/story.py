"""Story: short fiction, openings, dialogues and small poems."""

from .core import Category, bullets, parts
from .shared import NAMES

TEMPLATES = {
    "short-story": "Write a short story about {hero} who finds {object}.",
    "one-paragraph": "Tell me a one-paragraph story about {hero} in {place}.",
    "five-sentences": "In five sentences, tell the story of {hero} and {object}.",
    "bedtime": "Write a {mood} bedtime story about {hero}. Keep it under 100 words.",
    "opening": "Write the opening paragraph of a {genre} story set in {place}.",
    "named": "Write a tiny story about {name}, {hero} from {place}.",
    "dialogue": "Write a short dialogue between {hero} and {hero2}.",
    "poem": "Write a {mood} poem of eight lines about {hero}.",
    "ending": "A story begins like this: {name} opened the door and saw {object}. How does it go on? One paragraph, please.",
    "describe": "Describe {place} as it appears in a {genre} novel.",
    "letter": "Write a short letter from {name}, {hero}, to an old friend about {object}.",
    "lesson": "Make up a fable about {hero} that teaches something about {theme}.",
    "diary": "Write a diary entry by {hero} after a long day in {place}.",
    "first-line": 'Continue this story: "Nobody in {place} had ever trusted {hero}."',
    "plot": "Give me the plot of a {genre} movie about {hero} and {object} in three or four sentences.",
    "twist": "Tell a {mood} story where {object} turns out to belong to {hero}.",
    "kids": "My kids love stories about {theme}. Tell one with {hero} and {object}.",
}

HELDOUT_TEMPLATES = {
    "radio": "Write what a radio host would say about {hero} seen in {place}.",
    "argue": "{name} and {hero} argue over {object}. Write the scene, with a {mood} ending.",
    "rhyme": "Four rhyming lines, please: {hero}, {object}, and a bit of {theme}.",
    "blurb": "Write the back-cover text of a book in which {hero} leaves {place}.",
}

HEROES = parts("""
a shy lighthouse keeper; a brave mouse; a retired pirate; a lonely robot; a clumsy wizard; a
curious fox; a young astronaut; a grumpy baker; a lost penguin; a talking cat; a village doctor; a
blind musician; a tired mail carrier; a clever crow; a sleepy dragon; a queen without a crown; a
beekeeper; a night watchman; a street painter; a small ghost; a stubborn goat; a school janitor; a
deep-sea diver; a kind giant; a nervous knight; a traveling barber; a secret agent; an honest
thief; an old fisherman; an orphan girl; an ambitious snail; an elderly librarian; a truck driver;
a farm boy; a clockmaker; a hungry wolf; a friendly alien; a forgetful inventor; a mountain guide;
a circus acrobat; a river otter; a jealous prince; a puppet maker; a substitute teacher; a taxi
driver; a garden gnome; a snowman; a tiny elephant; a hopeful singer; a weather forecaster; a
train conductor; a chess champion; a runaway horse; a polite monster; a detective who hates rain;
a florist; a baby owl; a glassblower; a chef with no sense of taste; a homesick sailor; a mermaid;
a wandering monk; a bored princess; a stray dog; a shoemaker; a firefighter; a time traveler; a
proud peacock; a quiet tailor; a window cleaner; a tree spirit; a rookie pilot; a beetle with a
limp; a moon farmer; a scarecrow
""")

OBJECTS = parts("""
a rusty key; a glowing stone; an unsigned letter; a broken compass; a silver whistle; a map with
no names; a locked suitcase; a red umbrella; a music box; a wooden flute; a cracked mirror; a jar
of fireflies; an old camera; a golden egg; a torn photograph; a strange seed; a bottle with a
note; a missing shoe; a bell that never rings; a blue feather; a paper boat; a magic pencil; a
pocket watch; a box of buttons; a coin with two heads; a lantern; a book with blank pages; a pair
of ice skates; a talking radio; a violin with one string; a snow globe; a spool of thread; a
birthday cake; a secret door; a yellow kite; a bag of marbles; a ladder to the clouds; a sleeping
bear cub; a telescope; a ring made of wood; a chest of maps; a recipe in an unknown language; a
bicycle with wings; an empty birdcage; a painted mask; a cup of cold tea
""")

PLACES = parts("""
a quiet fishing village; an abandoned train station; a city under the sea; a snowy mountain pass;
a desert town; a crowded night market; a castle in the fog; a small space colony; a forest of
giant mushrooms; a floating island; a library with no windows; a seaside hotel; a sleepy suburb; a
jungle camp; an ice cave; a busy harbor; a haunted theater; a vineyard at harvest time; a lonely
farmhouse; a school for magicians; a tunnel beneath the river; a rooftop garden; an old mining
town; a swamp full of frogs; a windy island; a monastery; a carnival after closing time; a frozen
lake; a railway dining car; a valley of windmills; a bakery on a corner; a toy factory; a hospital
at midnight; a canyon; a village built on stilts; a zoo in winter; a lunar base; a houseboat; a
royal kitchen; an observatory
""")

HAND_TRAIN = bullets("""
- Tell me a funny story about a dog who thinks he is the mayor.
- Write a story in exactly three sentences. It must include a storm and a loaf of bread.
- Two strangers are stuck in an elevator. Write what happens in the first minute.
- Write a haiku about rain on a tin roof, and then one about snow.
- Can you write a short scary story that is okay for an eight-year-old?
- Make up a legend that explains why the sea is salty.
- Write a limerick about a man who could not stop sneezing.
- The last tree on Earth starts to speak. What does it say?
- Write a short conversation between the sun and the wind about who works harder.
- Start a story with the words "It was my turn to feed the volcano."
- Write a love story about two old neighbors, in under a hundred words.
- I need a short toast in story form for my sister's wedding. She loves hiking.
""")

HAND_HELDOUT = bullets("""
- Write about a vending machine that gives people what they need instead of what they ordered.
- Tell a story that takes place entirely in a laundromat. Keep it to one paragraph.
- Write a poem about forgetting someone's name at a party.
- My daughter lost her first tooth. Write a little story about where it went.
- A spoon and a fork fall in love. How does it end?
- Write a short monologue for an actor playing a man who waits for a bus that never comes.
- Make up a ghost story with a happy ending, four or five sentences long.
- Write the first few lines of an adventure that begins with a wrong phone number.
""")

CATEGORY = Category(
    "story",
    TEMPLATES,
    HELDOUT_TEMPLATES,
    {"hero": HEROES, "object": OBJECTS, "place": PLACES, "name": NAMES},
    {
        "mood": parts("funny; gentle; sad; hopeful; strange; cheerful; suspenseful; warm"),
        "genre": parts("mystery; fantasy; science fiction; romantic; western; ghost; historical"),
        "theme": parts("patience; honesty; courage; friendship; sharing; kindness; curiosity; forgiveness; hard work"),
    },
    HAND_TRAIN,
    HAND_HELDOUT,
)
