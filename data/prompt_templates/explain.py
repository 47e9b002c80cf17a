"""Explain: what something is or how it works."""

from .core import Category, bullets, parts

TEMPLATES = {
    "two-sentences": "Explain {topic} in two sentences.",
    "short-paragraph": "Explain {topic} in one short paragraph.",
    "to-child": "How would you explain {topic} to a {age}-year-old?",
    "simple-terms": "In simple terms, what should I know about {topic}?",
    "tell-me": "Tell me about {topic}.",
    "help-understand": "Help me understand {topic}. Use a simple example.",
    "beginner": "I'm new to this subject. Give me a short introduction to {topic}.",
    "why-important": "Why should people care about {topic}? Answer in three sentences.",
    "analogy": "Use an analogy to explain {topic}.",
    "compare": "What is the difference between {pair}?",
    "main-idea": "What is the main idea behind {topic}?",
    "for-class": "My {class} class is studying {topic}. Summarize it in a few sentences.",
    "step-by-step": "Describe {topic} step by step, but keep it brief.",
    "friend": "A friend asked me about {topic} and I didn't know what to say. Give me a short answer.",
    "plain-words": "Please describe {topic} in plain words, without jargon.",
    "misunderstand": "What do people often get wrong about {topic}?",
    "surprise": "What is one surprising thing about {topic}? Explain it in two or three sentences.",
}

HELDOUT_TEMPLATES = {
    "pamphlet": "Write a few lines about {topic} for a museum sign.",
    "grandmother": "My grandmother wants to know about {topic}. What can I tell her?",
    "three-facts": "Teach me {topic} quickly: one definition and one fact.",
    "confused": "I keep reading about {topic} and still feel confused. Can you clear it up?",
}

TOPICS = parts("""
photosynthesis; gravity; the water cycle; inflation; magnetism; the immune system; evaporation;
plate tectonics; supply and demand; DNA; black holes; the food chain; solar panels; how vaccines
work; friction; the greenhouse effect; compound interest; the phases of the moon; volcanoes; how
airplanes fly; democracy; machine learning; the human heart; erosion; sound waves; static
electricity; how batteries work; the solar system; pollination; hibernation; the stock market;
genetics; nuclear energy; tides; recycling; the ozone layer; encryption; natural selection;
rainbows; digestion; how the internet works; thunder and lightning; the carbon cycle; osmosis;
budgeting; insurance; credit scores; the Renaissance; the Industrial Revolution; metaphors; irony;
probability; prime numbers; the Pythagorean theorem; fractions; negative numbers; averages; how a
telescope works; refraction; the nervous system; antibiotics; viruses; bacteria; fermentation;
yeast; composting; crop rotation; irrigation; deforestation; desertification; wind turbines;
hydropower; geothermal heat; electric motors; circuits; semiconductors; radio waves; microwaves;
lasers; fiber optics; GPS; barcodes; search engines; computer memory; operating systems; cloud
storage; open-source software; computer viruses; passwords; two-factor authentication; spam
filters; algorithms; binary numbers; neural networks; robots; 3D printing; touch screens; inertia;
momentum; kinetic energy; potential energy; buoyancy; air pressure; density; the boiling point of
water; freezing; crystals; acids and bases; rust; combustion; atoms; molecules; the periodic
table; isotopes; radioactivity; fossils; dinosaurs; ice ages; glaciers; coral reefs; rainforests;
deserts; wetlands; ocean currents; hurricanes; tornadoes; earthquakes; tsunamis; clouds;
snowflakes; humidity; the seasons; leap years; time zones; latitude and longitude; maps;
compasses; eclipses; comets; meteors; the Milky Way; space stations; satellites; rockets; sleep;
dreams; memory; stress; habits; exercise; vitamins; protein; hydration; blood pressure; allergies;
the common cold; muscles; bones; the lungs; kidneys; eyesight; taste; the sense of smell; taxes;
savings accounts; mortgages; interest rates; trade; unemployment; advertising; small businesses;
the free market; elections; constitutions; juries; human rights; diplomacy; the United Nations;
the Roman Empire; ancient Egypt; the Silk Road; the printing press; feudalism; the Cold War;
archaeology; mythology; haiku; sonnets; satire; symbolism; rhythm in music; harmony; perspective
in drawing; watercolor painting; photography; animation; empathy; teamwork; critical thinking; the
scientific method; peer pressure; procrastination; bees; bird migration; camouflage;
metamorphosis; whales; spiders; photons; dark matter; relativity; entropy; superconductors
""")

PAIRS = parts("""
weather and climate; a virus and a bacterium; a comet and an asteroid; a simile and a metaphor;
mass and weight; speed and velocity; a reptile and an amphibian; an alligator and a crocodile;
stocks and bonds; a debit card and a credit card; renting and leasing; a hurricane and a tornado;
magma and lava; fog and mist; an atom and a molecule; an element and a compound; heat and
temperature; area and perimeter; a fruit and a vegetable; a moth and a butterfly; a monarchy and a
republic; a bill and a law; fiction and nonfiction; a novel and a novella; a violin and a viola;
hardware and software; a compiler and an interpreter; the internet and the web; RAM and a hard
drive; a concave and a convex lens; a solar and a lunar eclipse; stalactites and stalagmites; a
dolphin and a porpoise; empathy and sympathy; a fact and an opinion; gross and net pay; a
recession and a depression; an artery and a vein; aerobic and anaerobic exercise; a hypothesis and
a theory; baking soda and baking powder; jam and marmalade; a latte and a cappuccino; a mean and a
median
""")

HAND_TRAIN = bullets("""
- Why is the sky blue during the day but red at sunset?
- What happens to your body when you hold your breath?
- Can you explain why bread goes stale? Two or three sentences is fine.
- How does a zipper keep two pieces of cloth together?
- I never understood how noise-canceling headphones do it. Can you give me the short version?
- Why do onions make people cry when they are cut?
- What does a project manager actually do all day?
- Explain the offside rule in soccer to someone who has never watched a game.
- How come soap gets grease off plates when plain water can't?
- What is a sourdough starter, and why do bakers keep feeding it?
- Why do cats purr? Keep your answer to one paragraph.
- Explain what happens when I type an address into a web browser and press Enter.
""")

HAND_HELDOUT = bullets("""
- Why does metal feel colder than wood in the same room?
- How does a thermos keep soup hot for hours?
- My son asked why we have fingernails. What should I say?
- What is the point of daylight saving time, in a sentence or two?
- Explain how a bicycle stays upright once it is rolling.
- Why does popcorn pop?
- What does it mean when a library book is in the public domain?
- How do noses get stuffy, and why is it often worse at night?
""")

CATEGORY = Category(
    "explain",
    TEMPLATES,
    HELDOUT_TEMPLATES,
    {"topic": TOPICS, "pair": PAIRS},
    {"age": parts("6; 7; 8; 9; 10; 12"), "class": parts("seventh-grade; high school; evening; college; homeschool")},
    HAND_TRAIN,
    HAND_HELDOUT,
)
