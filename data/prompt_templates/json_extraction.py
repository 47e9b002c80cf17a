"""JSON: pull named fields out of a short text."""

from .core import Category, bullets, parts
from .shared import CITIES, DAYS, MONTHS, NAMES, TIMES

TEMPLATES = {
    "extract": "Extract {ask} from this text as JSON.\n\n{case}",
    "return-object": "Return a JSON object with {ask}: {case}",
    "text-first": "{case}\n\nPut {ask} from the text above into a JSON object.",
    "only-json": "Read the text and reply with JSON only, giving {ask}.\nText: {case}",
    "convert": "Convert this into JSON. Include {ask}. {case}",
    "form": 'Fill in a form from this message, in JSON format, with fields for {ask}.\n\n"{case}"',
    "null": "Find {ask} in the text below and write them as JSON. Use null for anything missing.\n\n{case}",
    "what-json": "What would this look like as JSON? I only need {ask}. {case}",
    "database": "I'm storing records in a database. Give me {ask} as a JSON record.\n{case}",
    "parse": "Parse the following note. Output: a JSON object containing {ask}.\n\nNote: {case}",
    "program": "My program reads JSON. Turn this into something it can read, with {ask}: {case}",
    "keys": "Use snake_case keys and extract {ask}.\n\n{case}",
    "list-of-one": "Answer with a JSON array holding one object that has {ask}. {case}",
    "after-explain": "Give {ask} in JSON and then explain in one sentence where you found them.\n\n{case}",
    "two-texts": "Make a JSON array with one object for each text.\n1. {case}\n2. {case2}",
}

HELDOUT_TEMPLATES = {
    "robot": "You are a data entry clerk. Type {ask} into JSON. Customer wrote: {case}",
    "indent": "Pretty-print, with two spaces of indent, a JSON object for {ask}. Source: {case}",
    "strings": "All values must be strings. I want {ask}. Here is the source:\n{case}\nJSON:",
    "api": "Suppose an API had to answer with {ask}. Show the response body for this text. {case}",
}

CASES = bullets("""
- {name} is {age} years old and works as a {job} in {city}. | the name, age, job and city | the
  name and the job | the age and the city
- My name is {name}, I live in {city}, and my favorite food is {food}. | the name, city and
  favorite food | the name and the food
- Please send {count} boxes of {food} to {name} at 12 Elm Street, {city}, before {day}. | the
  item, quantity and address | the recipient, the item and the delivery day
- The {event} takes place on {month} {date} at {time} in {city}. Tickets cost ${price}. | the
  event, date, time and price | the event name, the city and the ticket price
- {name} ordered a {product} for ${price} and paid by card on {day}. | the customer, product and
  price | the product, price, day and payment method
- Flight 218 to {city} leaves at {time} from gate 7 and arrives three hours later. | the flight
  number, destination, departure time and gate | the destination and the gate
- I stayed at the Harbor Hotel in {city} for {count} nights. The room was clean, but the breakfast
  was cold. | the hotel, city, number of nights and complaints | the good points and the bad
  points
- {name} and {name2} will meet on {day} at {time} to talk about the {event}. | the people, the day
  and the time | the participants and the topic
- Lost: one {color} {product}, last seen near the station in {city}. Call {name} at 555-0134. |
  the item, color, place and phone number | the contact name and phone number
- This {product} stopped working after {count} days. I'd give it two stars out of five. {name} |
  the product, the rating and the problem | the reviewer, rating and days of use
- Contact our {job}, {name}, at {email} or come by on {day}. | the name, job title and email | the
  email and the day
- For rent: a {color} house in {city}, {count} rooms, ${price} per week, pets allowed. | the city,
  rooms, price and whether pets are allowed | the color and the price
- Recipe: mix two cups of flour with one egg, add {food}, and bake for {count} minutes. | the
  ingredients and the baking time | the ingredients as a list
- {name} scored {count} points for the {city} Hawks on {day}, and {name2} scored six. | the
  players and their points | the team, the day and the top scorer
- The {city} Zoo has {count} lions, two bears and a very old tortoise named {name}. | the animals
  and how many there are | the zoo and the tortoise's name
- Reminder from {name}: dentist on {month} {date} at {time}. Bring the insurance card. | the
  appointment, date, time and what to bring | the sender and the date
- Born in {city} in 19{age}, {name} became a {job} and later wrote {count} books. | the name,
  birth year, birthplace and job | the name and the number of books
- We sell {color} mugs for ${price2}, {food} for ${price}, and maps of {city} for two dollars. |
  each item and its price | the cheapest item and the dearest item
- {name} drives a {color} van with the plate KLM {count}4 and parks it behind the bank in {city}.
  | the owner, vehicle, color and plate | the vehicle and where it is parked
- At {time} the temperature in {city} was {count} degrees, with light rain and wind from the west.
  | the city, time, temperature and weather | the temperature and the wind direction
- Team lunch is on {day}. {name} wants {food}, {name2} wants soup, and I'm not hungry. | who wants
  which food | the day and the orders
- Invoice 40{age}: {count} hours of work by {name}, {job}, at ${price} an hour. | the invoice
  number, hours and hourly rate | the worker, the job and the hours
- {name} adopted a {color} puppy called Biscuit from the shelter in {city} on {month} {date}. |
  the owner, pet name, color and date | the pet, the shelter city and the owner
- The course "Intro to Pottery" starts on {month} {date}, runs for {count} weeks, and is taught by
  {name}. | the course title, start date, length and teacher | the course and the teacher
- Hi, this is {name} from apartment {age}. The sink leaks and the {color} lamp in the hall is
  broken. | the name, apartment and problems | the list of things to repair
- {name} ran the {city} marathon in four hours and {count} minutes, in a {color} shirt. | the
  runner, race and time | the city and the finishing time
- Wanted: {job} with {count} years of experience. Send a letter to {email} by {month} {date}. |
  the job, required experience, email and deadline | the email and the deadline
- The film "Paper Moons" was shot in {city}, lasts {age} minutes, and stars {name}. | the title,
  location, running time and star | the star and the title
- {name}'s package weighs {count} pounds, holds {food}, and was mailed from {city} on {day}. | the
  sender, weight, contents and origin | the weight and the mailing day
- Our garden club has {age} members. {name} is the president, {name2} keeps the books, and dues
  are ${price} a year. | the club, officers and dues | the number of members and the president
- The {color} line goes from {city} to the airport every {count} minutes until {time}. | the line,
  how often it runs and the last train | the start, the end and the color
- {name} speaks French, Polish and a little Korean, and works as a {job}. | the name, languages
  and job | the languages as a list
- Happy birthday, {name}! You turn {age} today. Your gift, a {product}, arrives on {day}. | the
  name, age and gift | the gift and its arrival day
- {name} kept {count} beehives in {city} and sold honey for ${price} a jar. | the name, number of
  hives and price | the city and the product sold
- Meeting notes: {name} will call the {job}, {name2} will book the {event}, and both report on
  {day}. | each person and their task | the tasks and the report day
- Password reset for user {name}, account 77{age}, requested at {time} from {city}. | the user,
  account and time | the account and the location
- {name} returned a {product} to the {city} store because it was {color} instead of black. | the
  customer, product and reason | the store and the item
- Blood drive at the school on {month} {date}. {count} nurses, free {food}, parking behind the
  gym. | the event, place and date | the staff, the food and the parking
- Song of the day: "Slow Train Home" by {name}, recorded in {city}, {count} weeks on the chart. |
  the song, artist and weeks on the chart | the title and the place of recording
- Ticket for {name}: row {count}, seat {age}, {event}, {day} at {time}. | the holder, row, seat
  and time | the event and the seat
- {name} borrowed {count} books and a {product} from the library; they are due on {month} {date}.
  | the borrower, items and due date | the items and the due date
- In the poll, {age} people chose {food}, {count} chose salad, and one person, {name}, refused to
  answer. | the choices and their counts | the most popular choice and its count
""")

FOODS = parts("""
rice; noodles; fresh bread; tomatoes; olives; pancakes; cheese; mushrooms; grapes; chocolate;
almonds; oranges; sweet corn; dumplings; pretzels; spinach; pickles; walnuts; blueberries;
sardines; lentils; cinnamon rolls; yogurt; peaches; green tea; tofu; raisins; crackers; popcorn;
tacos
""")

JOBS = parts("""
nurse; carpenter; chemist; pilot; plumber; translator; tailor; librarian; cook; dentist; farmer;
lawyer; mechanic; painter; pharmacist; photographer; potter; reporter; sailor; surveyor; teacher;
waiter; welder; zookeeper; baker; geologist; florist; judge
""")

PRODUCTS = parts("""
toaster; desk lamp; backpack; camera; blender; umbrella; keyboard; tent; wallet; radio; bicycle
pump; rug; coffee grinder; suitcase; watch; guitar; hammer; kettle; raincoat; microphone; chess
set; printer; fan; scarf; drill; monitor; teapot; jacket
""")

EVENTS = parts("""
book fair; jazz concert; science night; flower show; chess tournament; charity run; film festival;
town meeting; bake sale; art auction; poetry reading; job fair; dance class; farmers market;
talent show; spelling bee; quiz night; garden tour; boat race; puppet show; school play; craft
fair; wine tasting; car wash
""")

EMAILS = parts("hello@example.com; office@example.org; info@example.net; jobs@example.com; desk@example.org; team@example.net")

HAND_TRAIN = bullets("""
- Make a JSON object for a dog named Rex who is 4 years old and likes swimming.
- Is this valid JSON? {'name': 'Lou', 'age': 5,} If not, fix it.
- Turn this grocery list into a JSON array: milk, twelve eggs, a bag of flour, two lemons.
- Write a JSON example of a weather report with the temperature, the humidity and a short
  description.
- Add a field "in_stock" set to true to this JSON: {"sku": "A12", "cost": 9.5}
- Convert this CSV line to JSON with sensible keys: 1042,Smith,2021-05-03,paid
- From "Turn left on Oak, go 2 miles, then right on Pine", make a JSON list of steps.
- Get the hashtags out of this post as a JSON array: Loved the sunset today #beach #nofilter
  #grateful
- Give me a JSON object with the three longest words in this sentence: The enormous elephant
  wandered slowly home.
- What are the keys in this JSON, and what are the types? {"id": 7, "tags": ["a", "b"], "ok":
  false}
- Represent a chess board position with just two kings as JSON. Kings are on e1 and e8.
- Write the days of the week as a JSON object that maps each day to its number, starting with 1.
""")

HAND_HELDOUT = bullets("""
- Write a JSON object that describes a paperback with a title, an author and a page count. Make up
  the values.
- This JSON has an error. Where is it? {"a": 1 "b": 2}
- Make a JSON array of the vowels, with each vowel in upper case.
- Take the prices out of this sentence as a JSON list of numbers: Socks are $4, hats are $11.50,
  and pins are 99 cents.
- Show how to store a phone book with two entries in JSON.
- "Rated R, 118 minutes, in theaters June 9." Make that into JSON with three keys.
- Change the JSON {"first": "Kim", "last": "Park"} so that it has one key, full_name.
- Express this as nested JSON: a zoo has two houses, and each house has two birds.
""")

DETAILS = {
    "age": parts("24; 31; 38; 42; 47; 55; 63; 68; 72; 86"),
    "count": parts("3; 5; 7; 8; 12; 14; 16; 18; 25"),
    "price": parts("6; 9; 15; 20; 35; 40; 48; 60"),
    "date": parts("2; 4; 9; 11; 15; 17; 21; 26; 28"),
    "color": parts("red; blue; gray; green; yellow; brown; white; purple; pink"),
    "email": EMAILS,
    "day": DAYS,
    "month": MONTHS,
    "time": TIMES,
}

CATEGORY = Category(
    "json",
    TEMPLATES,
    HELDOUT_TEMPLATES,
    {"case": CASES, "name": NAMES, "city": CITIES, "food": FOODS, "job": JOBS, "product": PRODUCTS, "event": EVENTS},
    DETAILS,
    HAND_TRAIN,
    HAND_HELDOUT,
)
