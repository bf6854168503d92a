"""Words that decide whether a full stop ends a sentence, by language.

All are in lower case and without their last stop. A word of several parts, such as
"e.g." or "z. B.", needs no entry: rules recognize it by its shape.
"""

from dataclasses import dataclass, replace
from functools import cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Abbreviations:
    """Words of one language, or of all languages together."""

    never: frozenset[str] = frozenset()
    """Abbreviations that never end a sentence, such as titles before a name."""
    numeric: frozenset[str] = frozenset()
    """Abbreviations only before a number or a counting letter, as in "No. 5"."""
    final: frozenset[str] = frozenset()
    """Abbreviations that may be a sentence's last word, such as "etc.". A word that is
    also in `never` ends a sentence only before a word of `starters`."""
    words: frozenset[str] = frozenset()
    """Words that are no abbreviations in lower case, although English ones are spelled
    alike, such as Vietnamese "no"."""
    starters: frozenset[str] = frozenset()
    """Function words that are capitalised only at the beginning of a sentence."""
    months: frozenset[str] = frozenset()
    """Months, days of the week and their abbreviations."""
    before_ordinals: frozenset[str] = frozenset()
    """Words that stand before an ordinal number."""
    has_ordinal_stop: bool = False
    """Whether the language writes the ordinal third as "3."."""
    street_endings: tuple[str, ...] = ()
    """Endings of abbreviated compounds before a number, as in "Hauptstr. 5"."""


ENGLISH = Abbreviations(
    never=_words(
        "mr mrs ms mx messrs mmes dr drs prof profs rev revd fr hon gen col maj capt "
        "cpt cmdr lt sgt cpl pvt adm brig supt insp gov sen sens rep reps pres st ste "
        "mt ft approx ca cf vs viz resp incl excl esp orig dept asst assoc bros attn "
        "med phil oec jur rer nat theol vet hr mme mlle msgr sr sra srta dipl ing e.g "
        "i.e eg ie u.s u.k u.n e.u u.s.a d.c ph.d m.d jr esq amb proc assn"
    ),
    numeric=_words(
        "no nos nr fig figs p pp pg pgs vol vols ch chap chaps sec secs sect art arts "
        "eq eqs eqn eqns tab tbl ver v par para paras pt pts ex app op ed eds fn n nn "
        "l ll rm ext tel ph lot bk div sch cl ln col cols cap jan feb mar apr jun jul "
        "aug sep sept oct nov dec min max ref refs est fol fols suppl apt rte iss ser"
    ),
    final=_words(
        "etc al inc ltd corp co bros jr sr esq plc ave blvd rd st sq hwy pkwy ct "
        "a.m p.m am pm u.s u.k u.n e.u u.s.a d.c b.c a.d b.c.e c.e ph.d m.d b.a m.a "
        "min max hrs hr yr yrs mo mos wk wks sec secs ft in oz lb lbs jan feb mar apr "
        "jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun"
    ),
    starters=_words(
        "the a an this that these those he she it we they i you his her its our their "
        "my your but and or so yet then there here in on at for from with by as if "
        "when while after before since until because although though however what who "
        "whom whose how why where which whether no yes not all some many most each "
        "every both another one two now also once perhaps maybe please let thus hence "
        "today tomorrow yesterday later soon never nothing nobody everyone everything "
        "is are was were do does did can could will would should may might has have "
        "had isn't aren't wasn't don't doesn't didn't can't won't it's that's he's "
        "she's they're we're i'm there's let's to of"
    ),
    months=_words(
        "january february march april may june july august september october november "
        "december monday tuesday wednesday thursday friday saturday sunday"
    ),
)
GERMAN = Abbreviations(
    never=_words(
        "dr prof hr hrn fr frl dipl ing mag lic st med phil jur rer nat oec theol vet "
        "habil h.c bzw vgl ca evtl ggf inkl exkl zzgl abzgl einschl ausschl bspw sog "
        "insb insbes gem lt zz zzt ggü betr bes urspr eigtl allg näml dgl mind höchst "
        "geb verh gest verw gesch u.a z.b d.h z.t i.d.r u.u s.o s.u o.ä i.a z.zt dt "
        "engl frz lat griech ital span russ amerik brit österr schweiz evang kath co "
        "sankt hl frhr gr kl ver hg hrsg mio mrd tsd std stdn min sek jh jhd jhdt chr "
        "n.chr v.chr tel str pl f ff u.ä fa fam inh vors verf bearb übers ehem ugs "
        "nördl südl östl westl stellv lfd hptm prov abk"
    ),
    numeric=_words(
        "nr nrn no abb abbn tab s sp bd bde kap art abs ziff anm aufl az blg anl bl "
        "fig gl rdnr rn rz satz tel fax v vers ps jes mt mk lk joh röm kor jan feb "
        "febr mär apr jun jul aug sep sept okt nov dez min max vol p pp hs str ref pos "
        "abt hausnr telnr kto bestnr beil"
    ),
    final=_words(
        "usw etc uvm ff f jh jhd jhdt std stdn min sek mio mrd tsd str pl tel u.a "
        "u.ä o.ä n.chr v.chr chr co kg ag mbh jr sen jun a.d d.j v.u.z u.s.w"
    ),
    starters=_words(
        "der die das dem den des ein eine einer eines einem einen er sie es wir ihr "
        "ich du man dies diese dieser dieses diesem diesen jene jener aber und oder "
        "doch denn dann danach daher darum deshalb dennoch da dort hier in im am an "
        "ans auf aus bei beim mit nach seit von vom vor zu zum zur für gegen ohne um "
        "durch über unter zwischen während wenn als ob weil nachdem obwohl damit was "
        "wer wie wo warum wann welche welcher welches nein ja nicht kein keine alle "
        "viele einige manche mehrere jeder jede jedes jetzt heute gestern morgen nun "
        "auch so sein seine seinem seinen ihre ihren mein meine unser unsere dazu "
        "dabei dafür damals später zuerst außerdem vielleicht ist sind war waren hat "
        "haben wird werden kann sollte alles nichts niemand jemand"
    ),
    months=_words(
        "januar jänner februar feber märz april mai juni juli august september "
        "oktober november dezember jan feb febr mär apr jun jul aug sep sept okt nov "
        "dez montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag"
    ),
    before_ordinals=_words(
        "der die das dem den des am im vom zum zur beim bis ab seit jeder jede "
        "jedes jeden jedem ein eine einen einem einer sein seine seinen seinem seiner "
        "ihr ihre ihren ihrem ihrer mein meine dieser diese diesem diesen unser unsere "
        "montag dienstag mittwoch donnerstag freitag samstag sonntag und"
    ),
    has_ordinal_stop=True,
    street_endings=("str",),
)
FRENCH = Abbreviations(
    never=_words(
        "m mm mme mmes mlle mlles me mgr dr drs pr prof st ste sts stes cap capt col "
        "gén lt env av apr cf p.ex c.-à-d c.à.d i.e vs resp hab bd boul pl sq ex max "
        "min tél adr dépt éd coll trad réf ann ets sté"
    ),
    numeric=_words(
        "n no nos nº p pp pg vol t tome ch chap art fig figs tab sect al éq par ann "
        "janv févr avr juil sept oct nov déc réf bât esc fol"
    ),
    final=_words("etc cie sarl s.a s.a.r.l j.-c av apr ibid op.cit"),
    starters=_words(
        "le la les un une des ce cet cette ces il elle on nous vous ils elles je tu "
        "son sa ses leur leurs notre votre mon ma mes mais et ou donc or ni car puis "
        "alors ensuite enfin ici là dans en au aux à de du sur sous pour par avec sans "
        "chez vers depuis pendant après avant quand lorsque comme si que qui quoi où "
        "comment pourquoi quel quelle non oui pas tout tous toutes toute chaque "
        "plusieurs certains aujourd'hui hier demain maintenant aussi ainsi cependant "
        "c'est c'était y l'on est sont ceci cela"
    ),
    months=_words(
        "janvier février mars avril mai juin juillet août septembre octobre novembre "
        "décembre lundi mardi mercredi jeudi vendredi samedi dimanche"
    ),
)
SPANISH = Abbreviations(
    never=_words(
        "sr sra sres sras srta srtas d dña dr dra dres prof profa lic ing arq gral "
        "cnel cap tte sto sta fr p.ej p.e pej ej aprox cf vs avda av c pza ud uds vd "
        "vds excmo excma ilmo ilma mons hno hna cía fdo dpto depto izq dcha"
    ),
    numeric=_words(
        "n no núm núms nro p pp pág págs vol cap caps art arts fig figs tab sec apdo "
        "tel tfno ed t ene feb mar abr may jun jul ago sep sept oct nov dic ref exp "
        "tlf párr lám máx mín"
    ),
    final=_words("etc s.a s.l cía ee.uu a.c d.c a.m p.m jr ibid"),
    starters=_words(
        "el la los las un una unos unas este esta estos estas ese esa eso esto él ella "
        "ellos ellas nosotros usted ustedes yo tú su sus mi mis pero y o así entonces "
        "luego después antes aquí allí en al a de del sobre para por con sin desde "
        "hasta cuando mientras como si que quien qué quién cómo dónde no sí todo "
        "todos cada muchos algunos hoy ayer mañana ahora también además es son era fue "
        "hay se lo le les"
    ),
    months=_words(
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre "
        "noviembre diciembre lunes martes miércoles jueves viernes sábado domingo"
    ),
)
ITALIAN = Abbreviations(
    never=_words(
        "sig sigg sig.ra sig.na dott dott.ssa dr prof prof.ssa ing avv arch geom rag "
        "on sen gen col cap s ss mons don p.es es cfr vs ca c.a d.ssa egr gent spett "
        "p.za v.le st f.lli c.so soc fam"
    ),
    numeric=_words(
        "n nn nr num pag pagg p pp vol cap art artt fig figg tab sez tel rif par all "
        "lett cod tav"
    ),
    final=_words("ecc etc s.p.a s.r.l a.c d.c jr ibid"),
    starters=_words(
        "il lo la i gli le un uno una questo questa questi queste quello quella lui "
        "lei noi voi loro io tu egli essa suo sua suoi mio mia ma e o però quindi poi "
        "allora qui lì in nel nella al alla di del della su per con senza da dal dopo "
        "prima quando mentre come se che chi cosa dove perché non sì tutto tutti ogni "
        "molti alcuni oggi ieri domani ora anche inoltre è sono era ci si"
    ),
    months=_words(
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre "
        "novembre dicembre"
    ),
)
PORTUGUESE = Abbreviations(
    never=_words(
        "sr sra srs sras srta dr dra drs prof profa eng exmo exma ilmo ilma d dom av r "
        "gen cel cap ten p.ex ex aprox cf vs sto sta fr pe v.exa cia dpto"
    ),
    numeric=_words(
        "n no nº núm p pp pág págs vol cap art arts fig figs tab sec tel ref fl fls "
        "apto cód máx mín"
    ),
    final=_words("etc ltda s.a cia a.c d.c jr ibid"),
    starters=_words(
        "o a os as um uma uns umas este esta estes estas esse essa isso isto ele ela "
        "eles elas nós você vocês eu tu seu sua seus suas meu minha mas e ou então "
        "depois antes aqui ali em no na nos nas ao à de do da sobre para por com sem "
        "desde até quando enquanto como se que quem onde porque não sim tudo todos "
        "cada muitos alguns hoje ontem amanhã agora também além é são era foi há"
    ),
    months=_words(
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro "
        "novembro dezembro"
    ),
)
DUTCH = Abbreviations(
    never=_words(
        "dhr mevr mw mej dr drs prof ir ing mr ds st bijv bv o.a d.w.z m.a.w i.p.v "
        "t.o.v m.b.t n.a.v ca circa evt incl excl resp vgl zgn ong max min gebr jhr "
        "mgr enz.v fa fam burg secr"
    ),
    numeric=_words(
        "nr nrs blz p pp afb fig tab art hfst h vol dl tel lid par bl ref bijl hfdst "
        "aant"
    ),
    final=_words("enz etc e.a e.d b.v n.v chr v.chr n.chr jr sr"),
    starters=_words(
        "de het een dit dat deze die hij zij ze wij we jullie u ik jij je zijn haar "
        "hun ons onze mijn maar en of dus toen dan daarna daar hier in op aan bij met "
        "na van voor uit over onder tegen om door als terwijl omdat hoewel wat wie hoe "
        "waar waarom wanneer welke nee ja niet geen alle veel sommige elke vandaag "
        "gisteren morgen nu ook er is"
    ),
    months=_words(
        "januari februari maart april mei juni juli augustus september oktober "
        "november december"
    ),
)
SWEDISH = Abbreviations(
    never=_words(
        "dr prof hr fr bl.a t.ex d.v.s dvs bl osv.d ca jfr s.k m.a.o t.o.m fam ang "
        "forts inkl exkl resp ev"
    ),
    numeric=_words("nr s sid kap fig tab bd st tel art ref avd bil tfn mom max min"),
    final=_words("osv etc m.m m.fl o.d o.s.v kl e.kr f.kr"),
    starters=_words(
        "den det de en ett denna detta dessa han hon vi ni jag du man men och eller så "
        "då sedan här där i på av för från med till om när medan efter innan eftersom "
        "vad vem hur var varför nej ja inte alla många några nu också"
    ),
    months=_words(
        "januari februari mars april maj juni juli augusti september oktober november "
        "december"
    ),
)
DANISH = Abbreviations(
    never=_words(
        "dr prof hr fr bl.a f.eks fx d.v.s dvs ca jf s.k cand mag eks pga fa fam inkl "
        "ekskl evt adr"
    ),
    numeric=_words("nr s kap fig tab bd tlf art stk ref afd avd pkt max min"),
    final=_words("osv etc m.m m.fl o.l f.kr e.kr kr kl"),
    starters=_words(
        "den det de en et denne dette disse han hun vi jeg du man men og eller så da "
        "der her i på af for fra med til om når mens efter før fordi hvad hvem hvordan "
        "hvor hvorfor nej ja ikke alle mange nogle nu også"
    ),
    months=_words(
        "januar februar marts mars april maj mai juni juli august september oktober "
        "november december desember jan feb mar apr jun jul aug sep sept okt nov dec "
        "des mandag tirsdag onsdag torsdag fredag lørdag søndag"
    ),
    before_ordinals=_words("den det de d i til fra på og kong dronning søndag"),
    has_ordinal_stop=True,
)
FINNISH = Abbreviations(
    never=_words("dos prof tri toht maist esim ent eaa mm ns nk ts vrt ks huom"),
    numeric=_words("nro s sivu luku kuva puh t"),
    final=_words("jne ym yms yo ekr jkr klo oy ab"),
    starters=_words(
        "hän se he ne me te minä sinä tämä tuo nämä mutta ja tai niin sitten siellä "
        "täällä kun jos koska vaikka mitä kuka miten missä miksi ei kyllä kaikki moni "
        "nyt myös"
    ),
    months=_words(
        "tammikuuta helmikuuta maaliskuuta huhtikuuta toukokuuta kesäkuuta heinäkuuta "
        "elokuuta syyskuuta lokakuuta marraskuuta joulukuuta"
    ),
    has_ordinal_stop=True,
)
POLISH = Abbreviations(
    never=_words(
        "dr prof mgr inż lic hab doc gen płk mjr kpt por ks o św bł np tj tzn tzw m.in "
        "ok zob wg al ul pl os im red ww jw r w ur zm gm woj pow tow ppor arch"
    ),
    numeric=_words(
        "nr s str rys tab art ust pkt poz t rozdz tel par zob zał lp wyd maks"
    ),
    final=_words("itd itp etc in r w zł gr godz min tys mln mld n.e p.n.e"),
    starters=_words(
        "ten ta to te ci on ona ono oni one my wy ja ty ale i lub więc wtedy potem tam "
        "tu w we na do z ze od po przed przez dla o u pod nad przy gdy kiedy jeśli "
        "ponieważ chociaż co kto jak gdzie dlaczego nie tak wszystko wielu dziś "
        "wczoraj jutro teraz także jest są był była było"
    ),
    months=_words(
        "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września "
        "października listopada grudnia"
    ),
    has_ordinal_stop=True,
)
CZECH = Abbreviations(
    never=_words(
        "dr prof ing mgr bc mudr judr phdr rndr doc gen plk kpt sv např tj tzn tzv mj "
        "resp popř příp cca srov viz ul nám tř zvl přibl pí p sl fa vč pozn arch"
    ),
    numeric=_words("č čís s str obr tab kap čl odst písm sv roč tel ref příl max"),
    final=_words("atd apod aj etc kč hod min tis mil mld r l stol n.l př.n.l"),
    starters=_words(
        "ten ta to ti ty tento tato toto on ona ono oni my vy já ale a nebo tak pak "
        "potom tam tady v ve na do z ze od po před pro o u pod nad při když jestliže "
        "protože ačkoli co kdo jak kde proč ne ano všechno mnoho dnes včera zítra teď "
        "také je jsou byl byla bylo"
    ),
    months=_words(
        "ledna února března dubna května června července srpna září října listopadu "
        "prosince januára februára marca apríla mája júna júla augusta septembra "
        "októbra novembra decembra"
    ),
    has_ordinal_stop=True,
)
HUNGARIAN = Abbreviations(
    never=_words("dr prof id ifj özv kb ún pl vö ill szt stb.k gr ld vm"),
    numeric=_words("sz o old köt fej ábra tábl tel mell hrsz em ref"),
    final=_words("stb kft rt bt zrt nyrt u ún"),
    starters=_words(
        "a az ez egy ő ők mi ti én te de és vagy akkor aztán itt ott ha amikor mert "
        "hogy mit ki hogyan hol miért nem igen minden sok ma tegnap holnap most is"
    ),
    months=_words(
        "január február március április május június július augusztus szeptember "
        "október november december"
    ),
    has_ordinal_stop=True,
)
SOUTH_SLAVIC = Abbreviations(
    never=_words(
        "dr prof mr mag g ga gđa gdin sv npr tj tzv odn oz dipl ing ul ca usp arh inž "
        "akad"
    ),
    numeric=_words("br št str sl tab čl čl.t pogl god tel ref pril gl st"),
    final=_words("itd ipd etc sl n.š pr.n.š d.o.o d.d"),
    starters=_words(
        "ovaj ova ovo taj ta to on ona ono oni mi vi ja ti ali i ili pa onda tamo "
        "ovdje u na do iz od po prije za o pod nad pri kad ako jer iako što tko kako "
        "zašto ne da sve danas juče sutra sada je su bio bila"
    ),
    months=_words(
        "siječnja veljače ožujka travnja svibnja lipnja srpnja kolovoza rujna "
        "listopada studenoga prosinca januara februara marta aprila maja juna jula "
        "avgusta septembra oktobra novembra decembra januarja februarja junija julija"
    ),
    has_ordinal_stop=True,
)
RUSSIAN = Abbreviations(
    never=_words(
        "г-н г-жа гр проф акад доц д-р им ул пр просп пер пл наб св тов т.е т.н т.к см "
        "ср напр англ нем фр лат греч ген полк кап м-р ок обл г гг в вв соч изд ред "
        "пос дер"
    ),
    numeric=_words(
        "стр с рис табл гл разд п пп ст т тт № тел кв корп д ил илл прил вып оф"
    ),
    final=_words("др пр г гг в вв н.э руб коп тыс млн млрд мин сек ч т.д т.п"),
    starters=_words(
        "это этот эта эти тот та те он она оно они мы вы я ты его её их но и или а "
        "тогда потом затем там здесь в во на до из от по перед для о об у под над при "
        "с со к ко за когда если потому хотя что кто как где почему нет да не все "
        "много сегодня вчера завтра теперь сейчас также есть был была было были"
    ),
    months=_words(
        "января февраля марта апреля мая июня июля августа сентября октября ноября "
        "декабря"
    ),
)
UKRAINIAN = Abbreviations(
    never=_words(
        "проф акад доц д-р ім вул просп пров пл св тов див пор напр р рр ст смт вид ред"
    ),
    numeric=_words("стор с рис табл гл розд п пп ст т тел дод іл вип кв буд"),
    final=_words("ін р рр ст н.е грн коп тис млн млрд хв т.д т.п"),
    starters=_words(
        "це цей ця ці той та ті він вона воно вони ми ви я ти його її їх але і й або а "
        "тоді потім там тут в у на до з із від по перед для про під над при коли якщо "
        "бо хоча що хто як де чому ні так не всі багато сьогодні вчора завтра тепер"
    ),
    months=_words(
        "січня лютого березня квітня травня червня липня серпня вересня жовтня "
        "листопада грудня"
    ),
)
TURKISH = Abbreviations(
    never=_words(
        "dr prof doç av sn bkz örn yard gen alb müh mim cad sok mah hz apt fak üniv"
    ),
    numeric=_words("no s sf cilt böl şek tel md ref bl kat"),
    final=_words("vb vs vd ltd şti a.ş mö ms"),
    starters=_words(
        "bu şu o bir ben sen biz siz onlar ama ve veya sonra orada burada eğer çünkü "
        "ne kim nasıl nerede neden hayır evet her bugün dün yarın şimdi de"
    ),
    months=_words(
        "ocak şubat mart nisan mayıs haziran temmuz ağustos eylül ekim kasım aralık"
    ),
    has_ordinal_stop=True,
)
ROMANIAN = Abbreviations(
    never=_words(
        "dl dna dle dlui dr prof ing sf str bd av gen col cca aprox ex d.ex șos resp"
    ),
    numeric=_words("nr p pag pp vol cap art fig tab alin lit tel ref bl sc ap"),
    final=_words("etc ș.a ș.a.m.d s.a s.r.l î.hr d.hr"),
)
GREEK = Abbreviations(
    never=_words("κ κα κος δρ καθ αγ οδ λεωφ π.χ δηλ βλ πρβλ περ αριθ"),
    numeric=_words("αρ σ σελ τόμ κεφ άρθ εικ πίν τηλ παρ εδ"),
    final=_words("κ.λπ κλπ κ.ά μ.χ π.χ κτλ"),
)
HINDI = Abbreviations(
    never=_words("डॉ डा श्री श्रीमती प्रो कु सं स्व"), numeric=_words("रु रू क्र पृ")
)
BENGALI = Abbreviations(
    never=_words("ড ডা ডঃ ডাঃ মি মিসেস মো মোঃ মোসা প্রফ প্রো অধ্যা"), numeric=_words("নং পৃ")
)
TAMIL = Abbreviations(never=_words("திரு திருமதி டாக் பேரா"), numeric=_words("ரூ பக்"))
THAI = Abbreviations(
    never=_words("ดร ศ รศ ผศ อ นพ พญ ทพ ภก จ ต ถ ซ ม โทร บจก หจก บมจ"),
    final=_words("น กม ซม มม กก พ.ศ ค.ศ"),
)
VIETNAMESE = Abbreviations(
    never=_words("tp ts ths gs pgs bs ks lm tx"),
    numeric=_words("q p đt tr"),
    words=_words("ca gen in no sen thu"),
)
ARABIC = Abbreviations(never=_words("د أ م ص ج ت هـ"))

BY_LANGUAGE = {
    "en": ENGLISH, "de": GERMAN, "fr": FRENCH, "es": SPANISH, "it": ITALIAN,
    "pt": PORTUGUESE, "gl": PORTUGUESE, "ca": SPANISH, "nl": DUTCH, "af": DUTCH,
    "sv": SWEDISH, "da": DANISH, "nb": DANISH, "no": DANISH,
    "nn": DANISH, "fi": FINNISH, "pl": POLISH, "cs": CZECH, "sk": CZECH,
    "hu": HUNGARIAN, "hr": SOUTH_SLAVIC, "sr": SOUTH_SLAVIC, "bs": SOUTH_SLAVIC,
    "sl": SOUTH_SLAVIC, "ru": RUSSIAN, "be": RUSSIAN, "uk": UKRAINIAN, "tr": TURKISH,
    "ro": ROMANIAN, "el": GREEK, "hi": HINDI, "ar": ARABIC, "lb": GERMAN,
    "mr": HINDI, "ne": HINDI, "bn": BENGALI, "ta": TAMIL, "th": THAI, "vi": VIETNAMESE,
}  # fmt: skip
"""Tables by base language."""
WITH_ORDINAL_STOP = frozenset({"is", "fo", "et", "lv", "lt", "eu", "mk", "az"})
"""Languages without a table that write the ordinal third as "3."."""
WITH_ENGLISH = frozenset({"hi", "mr", "ne", "bn", "ta", "th", "vi"})
"""Languages whose table adds to the English one."""
INTERNATIONAL = _words(
    "dr prof mr mrs ms ing dipl med phil jr sr inc ltd corp co etc al vs cf ca fig tab "
    "vol no nr p pp ph.d m.d u.s u.k u.n e.u u.s.a"
)
"""English and German words that the texts of other languages borrow."""


@cache
def abbreviations(language: str | None) -> Abbreviations:
    """Table of a base language, such as "de"; a common table for any other language.

    English titles and units are in the table of every language, as texts borrow them.
    Languages whose own abbreviations are few have all of the English ones, too.
    """
    if language not in BY_LANGUAGE:
        return _common(has_ordinal_stop=language in WITH_ORDINAL_STOP)
    own = BY_LANGUAGE[language]
    if own is ENGLISH:
        return own
    if language in WITH_ENGLISH:
        return replace(
            ENGLISH,
            never=own.never | INTERNATIONAL | ENGLISH.never,
            numeric=own.numeric | ENGLISH.numeric,
            final=own.final | ENGLISH.final,
            words=own.words,
            months=own.months,
        )
    return replace(
        own,
        never=own.never | (ENGLISH.never & INTERNATIONAL),
        numeric=own.numeric | (ENGLISH.numeric & INTERNATIONAL),
        final=own.final | (ENGLISH.final & INTERNATIONAL),
    )


def _common(*, has_ordinal_stop: bool) -> Abbreviations:
    tables = BY_LANGUAGE.values()
    return Abbreviations(
        never=INTERNATIONAL | ENGLISH.never | GERMAN.never,
        numeric=ENGLISH.numeric | GERMAN.numeric,
        final=ENGLISH.final | frozenset({"usw"}),
        starters=ENGLISH.starters,
        months=frozenset().union(*(each.months for each in tables)),
        has_ordinal_stop=has_ordinal_stop,
    )
