"""Question answering, with and without a short passage."""

from .core import Category, bullets, parts
from .shared import CITIES, DAYS, MONTHS, NAMES, TIMES

TEMPLATES = {
    "bare": "{question}",
    "one-sentence": "{question} Answer in one or two sentences.",
    "with-detail": "{question} Please add one interesting detail.",
    "quick-question": "Quick question: {question}",
    "homework": "My homework asks this: {question} Help me answer it.",
    "two-questions": "I have two questions. {question} And also: {question2}",
    "short-reason": "Answer the question and give a short reason. {question}",
    "curious": "I'm curious. {question} Explain briefly.",
    "read-answer": "Read the passage and answer the question.\n\n{case}\n\nQuestion: {ask}",
    "text-first": "{case}\n\n{ask}",
    "full-sentence": "Text: {case}\nQuestion: {ask}\nAnswer in two or three full sentences.",
    "based-on": "Here is what I read today. {case} Now tell me, please: {ask}",
    "explain-how": "{ask} Use only this text: {case}",
    "quote": "Passage:\n{case}\n\n{ask} Mention the words in the passage that tell you.",
    "true-false": "{case}\n\nSum up this passage in one sentence, then answer: {ask}",
    "context": "Context: {case}\n\nUsing the context, write a short paragraph that answers this: {ask}",
}


HELDOUT_TEMPLATES = {
    "trivia": "Trivia time! {question} And how do we know?",
    "bet": "My friend and I have a bet. {question}",
    "child-reader": 'My son read this in class: "{case}" His teacher asked, "{ask}" What should he write?',
    "support": "Someone sent us this note.\n---\n{case}\n---\n{ask} Reply as if you were at the help desk.",
}

QUESTIONS = parts("""
What is the capital of Australia?; Who wrote Romeo and Juliet?; How many legs does a spider have?;
Why do leaves change color in the fall?; What is the largest ocean on Earth?; Which planet is
closest to the sun?; How long does it take the Earth to go around the sun?; What do pandas eat?;
Who painted the Mona Lisa?; What is the tallest mountain in the world?; Why is the ocean salty?;
How many continents are there?; What language is spoken in Brazil?; What is the freezing point of
water?; Who was the first person to walk on the moon?; What causes an echo?; Why do we yawn?; What
is the fastest land animal?; How many bones are in the adult human body?; What is the currency of
Japan?; Which gas do plants take in?; What does a seismograph measure?; Who discovered
penicillin?; What is the longest river in South America?; Why do birds fly south for the winter?;
What is a group of lions called?; How many sides does a hexagon have?; What is the main ingredient
of guacamole?; Which country gave the Statue of Liberty to the United States?; What does a
thermometer measure?; Why does ice float?; Who invented the telephone?; What is the smallest prime
number?; What is the hardest natural substance?; Where do kangaroos live?; How do fish breathe?;
What is the boiling point of water at sea level?; Who was Cleopatra?; What happened to the
Titanic?; Why did people build the Great Wall of China?; What are the primary colors?; What is the
square root of 81?; Which organ pumps blood?; What is the largest desert in the world?; Who was
Albert Einstein?; What is an adverb?; What is a synonym?; How many minutes are in a day?; What do
you call a baby goat?; What are the three states of matter?; What is the chemical symbol for
gold?; Why do we have leap days?; What does a botanist study?; How old can a giant tortoise get?;
Which instrument has 88 keys?; How is glass made?; Where does chocolate come from?; How is paper
made?; What is the difference between a frog and a toad?; Why do stars twinkle?; What makes bread
rise?; What is the purpose of a keel on a boat?; How do camels survive in the desert?; Who was
Marie Curie?; Who was Nelson Mandela?; What did the Wright brothers do?; What is the Great Barrier
Reef?; Where is Machu Picchu?; What is the Eiffel Tower made of?; Which animal is known as the
king of the jungle?; What is a palindrome?; How does a caterpillar become a butterfly?; Why do
cats have whiskers?; Can penguins fly?; What vitamin do we get from sunlight?; Is a tomato a fruit
or a vegetable?; What are clouds made of?; Why does the moon have craters?; How hot is the sun?;
What is quicksand?; Who wrote the story of the Ugly Duckling?; What was the Black Death?; What is
the Magna Carta?; When did World War II end?; Who was the first president of the United States?;
What was the Silk Road used for?; Which metal is liquid at room temperature?; What is the national
animal of Scotland?; Why is Venus so hot?; How many strings does a cello have?; What does an
economist do?; What is a food allergy?; What does the liver do?; Why do we get goose bumps?; What
are fingerprints for?; Why is exercise good for the brain?; How do submarines sink and rise?; Why
are flamingos pink?; How do chameleons change color?; Do bats really use sound to find their way?;
What is the deepest part of the ocean?; What is the Richter scale?; How do bees make honey?; Why
do some people sneeze in bright light?; What is the oldest city in the world?; Where did the
Olympic Games begin?; What is the difference between a crow and a raven?; What is the difference
between a lake and a pond?; What is the difference between jam and jelly?; What is gluten?; How do
I remove a coffee stain?; How long should I boil an egg?; What can I use instead of eggs in a
cake?; How often should I water a cactus?; Can dogs eat grapes?; What is tofu made of?; How do I
politely end a phone call?; What should I wear to a funeral?; How much water should a person drink
each day?; What is the best way to learn vocabulary?
""")

CASES = bullets("""
- The town library in {city} opens at {time} on {day}. Members may borrow six books, and {name}
  teaches a free drawing class in the back room. | When does the library open? | How many books
  may a member borrow? | What does {name} teach?
- {name} grew up on a sheep farm and moved to {city} to study music. After ten years with an
  orchestra, {name} opened a small shop that repairs guitars. | What did {name} study? | What does
  the shop do? | Where did {name} grow up?
- The red fox hunts mostly at night. It eats mice, berries and insects, and it can hear a mouse
  under deep snow. In spring it raises its young in a den. | What does the red fox eat? | How can
  the fox find a mouse in winter? | Where are the young raised?
- The ferry from {city} leaves at {time} every {day}. The crossing takes forty minutes, but in
  strong wind the captain, {name}, may cancel it. | When does the ferry leave? | Why might the
  ferry be canceled? | Who is the captain?
- In {month}, {name} planted beans, carrots and squash. Rabbits ate the carrots, so a fence was
  built, and the beans did so well that neighbors got some. | Which plants were eaten? | Why was a
  fence built? | What happened to the extra beans?
- {name} lost a blue scarf on the train to {city}. A conductor found it under a seat and kept it
  at the station until {day}. | What did {name} lose? | Where was it found? | Until when was it
  kept?
- The clock tower was built in 1892. Its bell cracked during a cold winter, and since then it has
  rung only once a year, on the first day of {month}. | When was the tower built? | Why does the
  bell ring so rarely? | On what day does it ring?
- A new bakery opened next to the bank. {name}, the owner, gets up at three in the morning and
  sells out of rye bread before {time}. | Who owns the bakery? | What sells out early? | Where is
  the bakery?
- Honeybees dance to tell others where flowers are. The angle of the dance shows the direction,
  and its length shows how far the flowers are. | Why do honeybees dance? | What does the angle
  show? | How does a bee show distance?
- The swimming pool closes for cleaning every {day}. Lifeguards, led by {name}, use that time to
  practice rescue drills. | Why does the pool close? | What do the lifeguards practice? | Who
  leads the lifeguards?
- Last year {name} rode a bicycle from {city} to the coast. The trip took nine days, and the worst
  part was a broken chain in the rain. | How long did the trip take? | What was the worst part? |
  How did {name} travel?
- The company moved its office to {city} because rent was lower. Half of the workers moved too,
  and {name} now runs a team that works from home. | Why did the company move? | How many workers
  moved? | What does {name} run?
- Cactus stems store water, and their spines are leaves that have become thin and sharp. The
  spines give shade and keep animals away. | What do the stems store? | What are the spines for? |
  What are spines, really?
- {name} baked two pies for the fair in {month}. The apple pie won second prize, while the cherry
  pie was dropped on the way. | Which pie won a prize? | What happened to the cherry pie? | When
  was the fair?
- A storm knocked down the oak in front of the school. The students counted 140 rings, and a
  carpenter will turn the wood into benches. | How do we know the age of the oak? | What will be
  made of the wood? | What knocked down the tree?
- The night train stops in {city} for ten minutes. {name} once got off to buy tea, and the train
  left without its only cook. | How long does the train stop? | Why did {name} get off? | What was
  {name}'s job?
- Salt was once so valuable that it was carried across deserts by camel. Towns along the way grew
  rich by taxing each load. | How was salt carried? | How did the towns grow rich? | Was salt
  cheap?
- Dr. {name} asked the patients to walk for twenty minutes a day. After two months most slept
  better, and none wanted to stop. | What did the doctor ask patients to do? | What changed after
  two months? | Did patients want to stop?
- The blue house has been empty since {month}. Children say it is haunted, but {name} found only
  an owl and a window that would not close. | How long has the house been empty? | What did {name}
  find? | What do children say about it?
- The chess club meets on {day} at {time}. New players pay nothing for the first month, and {name}
  lends out old boards. | When does the club meet? | What do new players pay? | Who lends out
  boards?
- Octopuses have three hearts and blue blood. They can squeeze through tiny gaps, and some carry
  coconut shells to hide in. | How many hearts does an octopus have? | What do some octopuses
  carry, and why? | What color is their blood?
- {name} wrote a letter to the mayor of {city} about a broken street light. It was repaired within
  a week, and the mayor sent a thank-you card. | Why did {name} write to the mayor? | How soon was
  the light repaired? | What did the mayor send?
- The valley gets little rain, so farmers there built stone channels that bring water from the
  hills. Some of the channels are eight hundred years old. | Why were the channels built? | How
  old are some of them? | Where does the water come from?
- {name} and {name2} share a flat in {city}. One works nights, the other works days, and they
  leave each other notes on the fridge. | How do they stay in touch? | Where do they live? | Why
  do they rarely meet?
- The store refunds any item within thirty days if it is unused. After that, {name} at the service
  desk can offer only a gift card. | What is the refund rule? | What can be offered after thirty
  days? | Who works at the service desk?
- Early maps of the region show an island that does not exist. A sailor had drawn a fog bank, and
  others copied his mistake for a century. | What did the sailor really see? | How long was the
  mistake copied? | What do the maps show?
- On {day}, the museum let visitors touch some of the old tools. {name}, who is blind, said it was
  the best visit in years. | What were visitors allowed to do? | What did {name} say? | On what
  day was it?
- Penguins huddle together in the cold and take turns standing in the middle. The birds at the
  edge face the wind until others replace them. | Why do penguins huddle? | Who stands at the
  edge? | How do they take turns?
- {name} sold a painting for $40 at a market in {city}. A month later it hung in a hotel with a
  price tag of $900. | How much did {name} get? | Where did the painting hang later? | How much
  did the price go up?
- The hiking trail is nine miles long. It passes two waterfalls and an old mine, and it is closed
  in {month} because eagles nest there. | How long is the trail? | What can hikers see? | Why does
  the trail close?
- Because the elevator was broken, {name} carried a piano up four floors with three friends. They
  finished at {time} and were too tired to play it. | Why did they carry the piano? | How many
  floors was it? | What happened at the end?
- The choir in {city} needed tenors, so {name} joined without knowing how to read music. By
  {month} there was a solo. | Why did {name} join? | What could {name} not do? | What came by
  {month}?
- Bamboo is a grass, not a tree. Some kinds grow three feet in a day, and the stems are used for
  houses, paper and bicycles. | What kind of plant is bamboo? | How fast can it grow? | Name two
  uses of the stems.
- Our cat, Pepper, disappeared in {month}. Three weeks later {name} saw her asleep in a bakery
  window in {city}, fatter than before. | When did the cat disappear? | Where was she found? | How
  had she changed?
- The bus driver, {name}, greets every passenger by name. When {name} retired, two hundred people
  came to the last stop with flowers. | What is special about the driver? | Who came to the last
  stop? | What did they bring?
- Scientists found that the lake is warming. Trout have moved to deeper water, and fishermen who
  used to stay near the shore now need longer lines. | Why did the trout move? | What do fishermen
  need now? | What did scientists find?
- {name} learned to cook from an aunt in {city}. The first dish was lentil soup, and it is still
  the one that guests ask for on {day} evenings. | Who taught {name} to cook? | What was the first
  dish? | What do guests ask for?
- Half the seats in the theater were empty on {day}. The actors played as well as ever, and {name}
  in the front row stood up and clapped alone. | How full was the theater? | Who stood up? | How
  did the actors play?
""")

HAND_TRAIN = bullets("""
- Is it safe to eat rice that was left out overnight?
- The recipe says "a pinch of salt". How much is that, really?
- What do I do if I locked my keys in the car?
- Which is heavier, a pound of feathers or a pound of bricks, and why do people get it wrong?
- The sign reads: "Pool hours 10 to 6, adults only after 4. No glass." Can I bring my little girl
  at five?
- Does reading in dim light damage your eyes?
- Can you tell me who Frida Kahlo was? Two sentences, please.
- Tom is taller than Sue. Sue is taller than Max. Who is the shortest, and how can you tell?
- How do I know if an avocado is ripe?
- The email says: "We will ship Tuesday unless the part is late, in which case Thursday." When
  will it ship?
- Why are manhole covers round?
- What is the polite way to eat noodles in Japan?
""")

HAND_HELDOUT = bullets("""
- Do goldfish really have a three-second memory?
- What should I do if I spill water on my laptop?
- The note on the door says "Back in 15 minutes" but has no time on it. What is the problem with
  that note?
- Anna's mother has three daughters: April, June and who else?
- Is it better to stretch before or after running?
- The label says: "Take one tablet every eight hours with food." How many tablets is that a day?
- What was the Trojan Horse?
- Why is it called a hamburger if there is no ham in it?
""")

CATEGORY = Category(
    "qa",
    TEMPLATES,
    HELDOUT_TEMPLATES,
    {"question": QUESTIONS, "case": CASES, "name": NAMES, "city": CITIES},
    {"day": DAYS, "month": MONTHS, "time": TIMES},
    HAND_TRAIN,
    HAND_HELDOUT,
)
