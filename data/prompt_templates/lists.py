"""List: a handful of items, ideas or tips."""

from .core import Category, bullets, parts

TEMPLATES = {
    "list-n": "List {n} {thing}.",
    "give-me": "Give me {n} {thing}.",
    "name-short": "Name {n} {thing}, each with a short description.",
    "what-are": "What are some {thing}? Give {n} bullet points.",
    "can-you": "Can you suggest {n} {thing} for {who}?",
    "numbered": "Make a numbered list of {n} {thing}.",
    "one-line": "I need {n} {thing}. One line each, please.",
    "with-reason": "Write down {n} {thing} and say in a few words why each one is good.",
    "top": "What are your top {n} {thing}?",
    "brainstorm": "Help me brainstorm {thing}. Stop at {n} ideas.",
    "newsletter": "I'm writing a newsletter for {who}. Please share {n} {thing}.",
    "quick": "Quick list: {thing}.",
    "poster": "We are making a poster about {thing}. What {n} items should be on it?",
    "best-first": "List some {thing}, starting with the best known. Stop after {n}.",
    "two-lists": "Give me two {thing} and then two {thing2}.",
    "no-explain": "Just {n} {thing}, no explanations, please.",
}

HELDOUT_TEMPLATES = {
    "stuck": "I'm stuck and can't think of any {thing}. Could you get me started with a few?",
    "quiz-night": "For quiz night I have to come up with {thing}. Show me {n}.",
    "bullets-for": "{who} asked me about {thing}. Reply with {n} short bullets.",
    "less-known": "Besides the obvious ones, which {thing} come to mind?",
}

THINGS = parts("""
ways to save water at home; healthy breakfast ideas; tropical fruits; tips for sleeping better;
indoor games for children; reasons to learn a new language; musical instruments; team-building
activities; questions to ask in a job interview; birthday gift ideas; small dog breeds; vegetables
that grow in shade; ways to reduce plastic waste; board games; countries in Africa; easy dinner
recipes; study tips for exams; hobbies that cost little; winter sports; things to pack for a beach
trip; famous inventors; root vegetables; ways to say thank you; morning habits; stretches for
people who sit all day; birds found in cities; uses for old newspapers; spices used in Indian
cooking; kinds of pasta; ice cream flavors; planets and moons; safety rules for the kitchen;
camping supplies; ways to stay motivated; classroom rules; houseplants that are easy to keep;
synonyms for the word happy; synonyms for the word big; adjectives to describe a storm; farm
animals; ocean animals; nocturnal animals; insects that help gardens; famous rivers; mountain
ranges; capital cities in Europe; islands worth visiting; museum activities for families; picnic
foods; sandwich fillings; soups for cold days; snacks for a long drive; desserts without
chocolate; drinks served hot; types of bread; cheeses from France; kitchen tools every cook needs;
tools for a beginner carpenter; sewing supplies; painting techniques; dance styles; types of
poems; fairy tale characters; story ideas about dragons; titles for a mystery novel; names for a
pet rabbit; names for a bakery; slogans for a bicycle shop; podcast topics; blog post ideas about
gardening; charity fundraiser ideas; ways to welcome a new neighbor; conversation starters;
icebreaker questions; good manners at the table; ways to calm down when angry; signs of
dehydration; benefits of walking; benefits of reading; benefits of drinking tea; causes of traffic
jams; causes of World War I; effects of pollution; renewable energy sources; metals and their
uses; chemical elements; branches of science; programming languages; keyboard shortcuts; features
of a good website; ways to protect a password; ways to back up photos; uses for a spare phone;
jobs that involve animals; outdoor jobs; jobs for people who like math; skills for a resume; ways
to save money on groceries; budget mistakes; ways to earn pocket money; rainy day activities;
craft projects with paper; science experiments with vinegar; holiday traditions; spring festivals;
costume ideas; party themes; wedding planning tasks; moving day tips; cleaning tips for the
bathroom; items for a first-aid kit; emergency supplies; car maintenance tasks; bike safety tips;
rules of chess openings; yoga poses; team sports; Olympic events; exercises without equipment;
swimming strokes; track and field events; landmarks in Asia; bridges known around the world; types
of houses; architectural styles; gemstones; types of clouds; trees with edible nuts; flowers that
bloom in fall; herbs for a window box; ways to attract butterflies; garden pests; ways to cook
eggs; ways to use leftover rice; toppings for pizza; salads for summer; foods rich in iron;
sources of fiber
""")

HAND_TRAIN = bullets("""
- What should I check before signing a lease on an apartment?
- I have a free Sunday and ten dollars. Give me five things I could do.
- Name three things a cat owner should always have in the house.
- List the steps for changing a flat tire, one short line per step.
- My book club is out of ideas. Suggest four novels with strong women as main characters.
- Which five questions should I ask before adopting an older dog?
- Give me a shopping list for tacos for six people.
- What are some polite ways to turn down an invitation? Three is plenty.
- List three pros and three cons of working from home.
- I'm visiting a friend in the hospital. What could I bring her?
- Name six words that rhyme with "light".
- What do I need to start knitting? Just the basics.
""")

HAND_HELDOUT = bullets("""
- What are the first things to do when the power goes out?
- Give me four excuses for being late that are not rude.
- List three pros and two cons of owning a motorcycle.
- My toddler refuses to eat anything green. Any ideas? Five at most.
- Name five things you would find in a dentist's office.
- Which household jobs can a teenager do without help?
- Suggest six names for a sailboat.
- I have flour, butter and sugar. What can I bake? Give a short list.
""")

CATEGORY = Category(
    "list",
    TEMPLATES,
    HELDOUT_TEMPLATES,
    {"thing": THINGS},
    {
        "n": parts("three; four; five; six; seven"),
        "who": parts("a busy parent; a college student; my coworkers; beginners; a retired couple; my neighbors; a small club"),
    },
    HAND_TRAIN,
    HAND_HELDOUT,
)
