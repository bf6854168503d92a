"""Write announcements of trains in English, German and Chinese, line by line."""

import random


def table(text):
    return [row.split("/") for row in text.split(", ")]


CITIES = table(
    "Berlin/Berlin/柏林, Hamburg/Hamburg/汉堡, Munich/München/慕尼黑, "
    "Paris/Paris/巴黎, Prague/Prag/布拉格, Rome/Rom/罗马, "
    "Vienna/Wien/维也纳, Warsaw/Warschau/华沙"
)
DAYS = table(
    "Monday/Montag/星期一, Tuesday/Dienstag/星期二, Wednesday/Mittwoch/星期三, "
    "Thursday/Donnerstag/星期四, Friday/Freitag/星期五, Saturday/Samstag/星期六, "
    "Sunday/Sonntag/星期日"
)
TRAINS = table("train/Zug/火车, night train/Nachtzug/夜车, express/Eilzug/快车")

random.seed(1)
lines = set()
while len(lines) < 6_000:
    city, day, train = map(random.choice, (CITIES, DAYS, TRAINS))
    hour, minute, track = (random.randrange(n) for n in (24, 60, 12))
    clock = f"{hour % 12 or 12}:{minute:02} {'a.m.' if hour < 12 else 'p.m.'}"
    english = (
        f"The {train[0]} to {city[0]} leaves on {day[0]} at {clock} "
        f"from track {track + 1}."
    )
    german = (
        f"Der {train[1]} nach {city[1]} fährt am {day[1]} um {hour}.{minute:02} Uhr "
        f"von Gleis {track + 1} ab."
    )
    chinese = (
        f"开往{city[2]}的{train[2]}{day[2]}{hour}点{minute:02}分从{track + 1}站台开出。"
    )
    lines.add((english, german, chinese))

for i, language in enumerate(("en", "de", "zh")):
    with open(f"my.{language}", "w", encoding="utf-8") as file:
        file.writelines(f"{line[i]}\n" for line in sorted(lines))
