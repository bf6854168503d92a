"""Write announcements of trains in English, German and Chinese, line by line."""

import random

CITIES = {
    "Berlin": "柏林", "Hamburg": "汉堡", "Paris": "巴黎", "Vienna": "维也纳",
    "Prague": "布拉格", "Rome": "罗马", "Munich": "慕尼黑", "Warsaw": "华沙",
}
GERMAN = {"Vienna": "Wien", "Prague": "Prag", "Rome": "Rom", "Munich": "München", "Warsaw": "Warschau"}
DAYS = {
    "Monday": ("Montag", "星期一"), "Tuesday": ("Dienstag", "星期二"),
    "Wednesday": ("Mittwoch", "星期三"), "Thursday": ("Donnerstag", "星期四"),
    "Friday": ("Freitag", "星期五"), "Saturday": ("Samstag", "星期六"),
    "Sunday": ("Sonntag", "星期日"),
}
TRAINS = {"train": ("Der Zug", "火车"), "night train": ("Der Nachtzug", "夜车"), "express": ("Der Eilzug", "快车")}

random.seed(1)
lines = set()
while len(lines) < 6_000:
    city, day, train = (random.choice(list(x)) for x in (CITIES, DAYS, TRAINS))
    hour, minute, track = random.randrange(24), random.randrange(60), random.randint(1, 12)
    half = "a.m." if hour < 12 else "p.m."
    german, chinese = TRAINS[train]
    en = f"The {train} to {city} leaves on {day} at {hour % 12 or 12}:{minute:02} {half} from track {track}."
    de = f"{german} nach {GERMAN.get(city, city)} fährt am {DAYS[day][0]} um {hour}.{minute:02} Uhr von Gleis {track} ab."
    zh = f"开往{CITIES[city]}的{chinese}{DAYS[day][1]}{hour}点{minute:02}分从{track}站台开出。"
    lines.add((en, de, zh))
for i, language in enumerate(("en", "de", "zh")):
    with open(f"my.{language}", "w", encoding="utf-8") as file:
        file.writelines(f"{line[i]}\n" for line in sorted(lines))
