"""Names and places that several categories use."""

from .core import parts

NAMES = parts("""
Amara; Ben; Carla; Dmitri; Elena; Farid; Greta; Hugo; Ines; Jonas; Keiko; Liam; Mona; Nadia;
Oscar; Priya; Quentin; Rosa; Samir; Tessa; Umar; Vera; Wesley; Ximena; Yusuf; Zoe; Adele; Bruno;
Chloe; Derek; Esme; Felix; Gwen; Hassan; Iris; Jamal; Kira; Leo; Marta; Nico; Odette; Pavel;
Quinn; Ruth; Stefan; Tara; Ugo; Violet; Walter; Yara; Zane; Anita; Boris; Celeste; Dominic; Edith;
Fiona; Gavin; Helga; Ivan; Joan; Kofi; Lena; Malik; Nora; Owen; Paula; Ramon; Sybil; Tobias;
Ursula; Vikram; Wanda; Yolanda; Zachary; Alba; Bjorn; Cyrus; Delia; Emilio; Freya; Gideon; Hanna;
Isaac; Jade; Kurt; Lucia; Magnus; Noemi; Olga; Piers; Renata; Silas; Thea; Uri; Valerie; Willa;
Yvette; Zelda; Andre; Bianca; Conrad; Daphne
""")

CITIES = parts("""
Lisbon; Denver; Kyoto; Oslo; Nairobi; Toronto; Lima; Dublin; Prague; Seattle; Hanoi; Athens;
Boston; Cairo; Vienna; Austin; Bogota; Madrid; Chicago; Mumbai; Porto; Helsinki; Santiago; Accra;
Warsaw; Portland; Manila; Geneva; Tampa; Naples; Osaka; Quito; Bergen; Dallas; Tunis; Lyon;
Sydney; Riga; Phoenix; Seville; Zagreb; Montreal; Krakow; Jakarta; Omaha; Bristol; Cusco; Tampere;
Nashville; Leeds
""")

DAYS = parts("Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday")

MONTHS = parts("""
January; February; March; April; May; June; July; August; September; October; November; December
""")

TIMES = parts("8:00 AM; 9:30 AM; 10:15 AM; noon; 2:30 PM; 4:00 PM; 5:45 PM; 7:00 PM; 8:30 PM")
