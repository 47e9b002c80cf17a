"""Rewrite: change the tone, the length or the form of a short text."""

from .core import Category, bullets, parts
from .shared import CITIES, DAYS, NAMES, TIMES

TEMPLATES = {
    "formal": "Rewrite this in a formal tone: {text}",
    "friendly": "Make this sound friendlier.\n\n{text}",
    "shorter": "Shorten the following to one sentence: {text}",
    "simple": "Rewrite the text below so that a child can understand it.\n\n{text}",
    "polite": 'Can you make this more polite? "{text}"',
    "past": "Rewrite this paragraph in the past tense: {text}",
    "third-person": "{text}\n\nRewrite the text above in the third person.",
    "summary": "Summarize this in your own words:\n{text}",
    "bullets": "Turn this into bullet points: {text}",
    "email": "Turn these notes into a short email: {text}",
    "tone": "Rewrite the following in a {tone} tone.\n\n{text}",
    "paraphrase": "Paraphrase this without changing the meaning: {text}",
    "longer": "Expand this into a full paragraph with more detail. {text}",
    "headline": "Write a headline and one sentence for this news: {text}",
    "fix": "Fix the grammar and the punctuation: {lower}",
    "audience": "Rewrite this for {audience}: {text}",
    "clear": 'This is hard to read. Please make it clearer and remove what isn\'t needed.\n\n"{text}"',
    "proofread": "Please proofread my message and give me a clean version.\n\n{lower}",
}

HELDOUT_TEMPLATES = {
    "tweet": "Squeeze this into a social media post of at most 30 words: {text}",
    "opposite": "Say the reverse of what this says, in the same style. {text}",
    "spoken": "I have to say this out loud at a meeting. Make it sound natural: {text}",
    "texting": "My text message was a mess. How should I have written it? {lower}",
}

TEXTS = bullets("""
- The meeting with {name} was moved to {day} because the room was already taken. Please bring the
  printed report.
- I can't come to work on {day}. My car broke down outside {city} and the garage says it will take
  two days.
- We regret that your package was sent to {city} by mistake. A new one is on its way, and you
  won't be charged again.
- The old bridge is closed for repairs until {day}. Drivers should use the road along the river,
  which adds ten minutes.
- {name} started the bakery with one oven and a borrowed table. Today it sells three hundred
  loaves before noon.
- The new software is faster, but several menus have moved. {name} wrote a guide that shows where
  everything went.
- My neighbor's dog barks every night until {time}. I have asked twice, and nothing has changed.
- The museum in {city} shows two hundred paintings by local artists. Entry is free on {day}
  mornings.
- I bought this kettle a month ago and it already leaks. I want my money back, not another kettle.
- Our team finished the project early. {name} checked the numbers, and {name2} wrote most of the
  final text.
- Due to the heavy rain, the school trip to {city} is canceled. Parents will get a refund by
  {day}.
- The apartment has two bedrooms, a small kitchen and a view of the park. It is quiet, but there
  is no elevator.
- {name} plays the violin in the street near the station. Most people hurry past, yet a few always
  stop to listen.
- The bus was late again, so I missed the first part of the exam. The teacher let me finish after
  {time}.
- You must wear a helmet at all times. People who ignore this rule will be asked to leave the site
  at once.
- The soup needs more salt. Also, the bread was cold and we waited forty minutes for a glass of
  water.
- Bees visit many flowers to collect nectar. As they move, pollen sticks to their legs and is
  carried to other plants.
- The library will open at {time} instead of noon from next {day}. The reading room stays closed
  for painting.
- I am writing because my invoice lists three chairs, but only two arrived. Please send the third
  one or correct the bill.
- {name} forgot the password again and called me at {time}. I reset it, and we agreed that a
  password manager would help.
- The forest was silent except for the creek. {name} followed the trail until the light was almost
  gone.
- Several customers in {city} said that the website is slow. We found the cause and will install a
  fix on {day}.
- Thank you for your interest in the job. We had many good applicants and have chosen someone with
  more experience.
- Volunteers planted sixty trees along the canal. {name} brought coffee, and the children made
  little name signs.
- The printer is out of paper, the scanner does not turn on, and nobody knows who ordered the blue
  ink.
- Sleep helps the brain sort what it learned during the day. People who sleep too little often
  find it harder to focus.
- My flight to {city} was delayed by six hours. I missed the dinner with {name} and had to pay for
  a hotel.
- The coach wants everyone on the field by {time}. If you are late, you run an extra lap.
- {name} has never liked the color of the office. On {day} we came in and found it painted bright
  orange.
- The cafe serves breakfast all day. The pancakes are the best in {city}, though the chairs are
  not comfortable.
- Turn off the water before you remove the tap. Then loosen the nut slowly and keep a bucket under
  the pipe.
- Electric cars are quiet and need little service. Charging takes time, and long trips have to be
  planned.
- We plan to hire two people this spring. {name} will train them, and both will begin in the
  {city} office.
- The lake freezes in December. Families skate there on {day} afternoons while vendors sell hot
  chestnuts.
- I told {name} that the tickets were sold out, but it turned out there were still a few seats in
  the last row.
- The river rose a foot overnight. Firefighters filled sandbags until {time}, and nobody was hurt.
- Reading aloud to small children builds their vocabulary. Even ten minutes before bed makes a
  difference.
- {name} found a wallet on the train from {city} and mailed it back. The owner sent flowers and a
  long letter.
- Please do not feed the ducks with bread. It makes them ill and it draws rats to the pond.
- The concert was loud and far too long. Still, {name} says it was the happiest night of the year.
- Our grandmother kept every letter she ever got. We found them in the attic in boxes sorted by
  year.
- The price of coffee went up again. The shop owner says she has no choice, since rent and beans
  both cost more.
- You asked for my opinion, so here it is: the plan is too complicated and it depends too much on
  {name}.
- A storm cut the power in half of {city} last night. Crews worked until {time} and most homes
  have light again.
- The hikers carried too little water. By {time} they had turned back, tired and very thirsty.
- {name} wants to learn to swim this year. The first lesson is on {day}, and the pool is only five
  minutes away.
- The sofa is gray, three years old and in good shape. I am selling it because I am moving to
  {city}.
- Small farms often grow several crops at once. If one fails because of bad weather, the others
  can still be sold.
- Our internet has been down since {day}. I called twice, was told to restart the router, and it
  did not help.
- The play ends when {name}, the youngest cousin, sells the house and walks away without looking
  back.
""")

LOWER = bullets("""
- hey {name} sorry i didnt answer yesterday my phone was dead can we talk on {day} instead
- me and {name} was going to the store when we seen a huge dog it were scared of us
- their are to many people in the {city} office and nobody know were the meeting is
- i has been working here for 3 years and i never been late except for one time on a {day}
- can u pls send me the file by {time} its realy important thx
- the childrens toys was all over the floor and it dont look like anyone want to clean
- yesterday i go to the doctor and he say i should of come more earlier
- we was suppose to meet at {time} but {name} forgot about it so we just went home
- please find attach the document i am waiting for you're reply until {day}
- he dont like vegetables but she like them alot so they always argues about dinner
- my sister live in {city} since five years and she speak the language very good now
- if i would have knew about the party i would of brought a cake for {name}
- the informations in this letter is wrong i never ordered no shoes from you
- its a nice day isnt it {name} lets go too the park and bring are bikes
- between you and i the food was not that good and the waiter he was rude
- i look forward to meet you in {city} on {day} please let me know if its suits you
- them books belongs to {name} so dont write in it please
- we need less chairs and more tables because their coming at {time} with the whole family
- the team have did a great job and everyone are proud off them
- i am agree with you but i think we should of ask {name} first
- there car is more bigger than our's but it use to much gas
- sorry for late reply i was on vacations in {city} and dont had internet
- who's jacket is this it been laying here since {day} and noone picked it up
- could you explain me how works the machine i tryed everything
""")

HAND_TRAIN = bullets("""
- Make this less blunt: "Your design is ugly and nobody will use it."
- Rewrite as a question: You are coming to dinner tonight, and you are bringing the salad.
- Say this in one short sentence: Owing to the fact that it was raining, we made the decision not
  to go outside.
- Turn this into a polite text to my landlord: heater broken, third time this winter, fix it
  today.
- Rewrite "The cake was eaten by the children" in the active voice and explain the change.
- How can I say "I don't know" in a more professional way? Give three versions.
- Rewrite this sentence without the word "very": She was very tired, very hungry and very cold.
- Turn this joke into a serious statement: I'd agree with you, but then we'd both be wrong.
- Change this recipe step into a numbered list: mix the eggs with milk, add flour, stir until
  smooth, then rest for ten minutes.
- Make this apology sound sincere: Sorry if you were upset by what I said.
- Rewrite for a resume: I answered phones and sometimes fixed the computers when they broke.
- Put this in plain English: The party of the first part shall remit payment forthwith.
""")

HAND_HELDOUT = bullets("""
- Make this sound more confident: I think I could maybe be a good fit for the role, if you want.
- Rewrite this as a haiku: The leaves fell early this year and the yard is full of them.
- Change this to the future tense: She opens the shop, sweeps the floor and makes tea.
- I wrote "u r the worst driver ever" to my brother. Help me say it kindly.
- Rewrite so that it rhymes: The frog jumped off the leaf and swam away.
- Turn this warning into a friendly sign: No shoes inside. Violators will be fined.
- Make it sound like a pirate said it: Please return the shopping carts after use.
- Cut this to ten words or fewer: At this point in time we are not able to offer any refunds to
  customers who have lost their receipts.
""")

CATEGORY = Category(
    "rewrite",
    TEMPLATES,
    HELDOUT_TEMPLATES,
    {"text": TEXTS, "lower": LOWER, "name": NAMES, "city": CITIES},
    {
        "day": DAYS,
        "time": TIMES,
        "tone": parts("cheerful; serious; persuasive; casual; humorous; calm; businesslike; dramatic"),
        "audience": parts("a newspaper reader; a close friend; my boss; a ten-year-old; new customers; tourists"),
    },
    HAND_TRAIN,
    HAND_HELDOUT,
)
