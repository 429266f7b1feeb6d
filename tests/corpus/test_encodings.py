"""The encoding of a text is recognised by its language, or the text is refused by name."""

import random

import pytest

from nanoeuler.corpus.decode import ENCODINGS, RARE, decode, decodes, recognise
from nanoeuler.corpus.packed_files import UnfitText
from nanoeuler.corpus.text_files import read_documents

TEXTS = {
    "Russian": (
        "cp1251 koi8-r iso8859-5 cp866 mac-cyrillic",
        "Утром над рекой стоял туман, и паромщик долго не решался отчалить от берега. Он "
        "слушал, как где-то далеко за лесом гудит поезд, и думал о письме, которое так и "
        "не отправил. Его дочь обещала приехать в субботу, но дороги размыло дождём, и автобусы "
        "больше не ходили.",
    ),
    "Ukrainian": (
        "cp1251 koi8-u",
        "Вранці над річкою стояв туман, і перевізник довго не наважувався відчалити від берега. "
        "Він слухав, як десь далеко за лісом гуде потяг, і думав про лист, якого так і не "
        "надіслав.",
    ),
    "Chinese": (
        "gbk gb18030",
        "清晨，河面上笼罩着薄雾，摆渡人迟迟不敢离岸。他听见远处森林后面火车的汽笛声，想起那"
        "封始终没有寄出的信。女儿答应星期六回来，可是大雨冲毁了道路，公共汽车已经停开了。",
    ),
    "Chinese of Taiwan": (
        "big5 gb18030",
        "清晨，河面上籠罩著薄霧，擺渡人遲遲不敢離岸。他聽見遠處森林後面火車的汽笛聲，想起那"
        "封始終沒有寄出的信。女兒答應星期六回來，可是大雨沖毀了道路，公共汽車已經停開了。",
    ),
    "Japanese": (
        "shift-jis euc-jp iso2022-jp",
        "朝、川の上には霧がかかっていて、渡し守はなかなか岸を離れようとしなかった。森の向こ"
        "うで汽車が鳴るのを聞きながら、とうとう出さなかった手紙のことを考えていた。娘は土曜"
        "日に来ると言っていたが、雨で道が流されてバスはもう走っていなかった。",
    ),
    "Korean": (
        "euc-kr cp949",
        "아침에 강 위에는 안개가 끼어 있었고 뱃사공은 좀처럼 강가를 떠나지 못했다. 그는 숲"
        " 너머에서 기차가 우는 소리를 들으며 끝내 보내지 못한 편지를 생각했다. 딸은 토요일"
        "에 오겠다고 했지만 비에 길이 무너져 버스가 더는 다니지 않았다.",
    ),
    "Polish": (
        "iso8859-2 cp1250",
        "Rano nad rzeką stała mgła i przewoźnik długo nie śmiał odbić od brzegu. Słuchał, "
        "jak gdzieś daleko za lasem gwiżdże pociąg, i myślał o liście, którego w końcu nie "
        "wysłał. Córka obiecała przyjechać w sobotę, ale drogi rozmył deszcz i autobusy już "
        "nie jeździły.",
    ),
    "Czech": (
        "iso8859-2 cp1250",
        "Ráno stála nad řekou mlha a převozník se dlouho neodvážil odrazit od břehu. Poslouchal, "
        "jak někde daleko za lesem houká vlak, a přemýšlel o dopise, který nakonec neodeslal. "
        "Dcera slíbila, že přijede v sobotu, ale cesty rozmočil déšť a autobusy už nejezdily.",
    ),
    "Hungarian": (
        "iso8859-2 cp1250",
        "Reggel köd ült a folyó fölött, és a révész sokáig nem mert elindulni a partról. "
        "Hallgatta, ahogy valahol messze az erdő mögött vonat fütyül, és a levélre gondolt, "
        "amelyet végül nem küldött el. A lánya megígérte, hogy szombaton eljön, de az eső "
        "elmosta az utakat, és a buszok már nem jártak.",
    ),
    "Greek": (
        "iso8859-7 cp1253",
        "Το πρωί πάνω από το ποτάμι υπήρχε ομίχλη και ο βαρκάρης δίσταζε για ώρα να αφήσει "
        "την όχθη. Άκουγε κάπου μακριά, πίσω από το δάσος, ένα τρένο να σφυρίζει και σκεφτόταν "
        "το γράμμα που τελικά δεν έστειλε. Η κόρη του υποσχέθηκε να έρθει το Σάββατο.",
    ),
    "Hebrew": (
        "iso8859-8 cp1255",
        "בבוקר עמד ערפל מעל הנהר, והמעבוראי היסס זמן רב לפני שעזב את הגדה. הוא הקשיב לרכבת "
        "שצפרה אי שם רחוק מעבר ליער, וחשב על המכתב שבסופו של דבר לא שלח. בתו הבטיחה לבוא "
        "בשבת, אבל הגשם שטף את הדרכים.",
    ),
    "Arabic": (
        "cp1256 iso8859-6",
        "في الصباح كان الضباب يغطي النهر، وتردد صاحب القارب طويلا قبل أن يغادر الضفة. كان "
        "يسمع قطارا يصفر بعيدا خلف الغابة، ويفكر في الرسالة التي لم يرسلها في النهاية. وعدته "
        "ابنته بأن تأتي يوم السبت، لكن المطر جرف الطرق.",
    ),
    "Turkish": (
        "iso8859-9 cp1254",
        "Sabahleyin nehrin üzerinde sis vardı ve kayıkçı uzun süre kıyıdan ayrılmaya cesaret "
        "edemedi. Ormanın ardında uzaklarda bir trenin öttüğünü dinliyor, bir türlü göndermediği "
        "mektubu düşünüyordu. Kızı cumartesi günü geleceğine söz vermişti, ama yağmur yolları "
        "götürmüştü.",
    ),
    "French": (
        "latin-1 cp1252 mac-roman cp850",
        "Le matin, la brume couvrait la rivière et le passeur n'osait pas quitter la rive. "
        "Il écoutait un train siffler très loin derrière la forêt, et pensait à la lettre "
        "qu'il n'avait finalement pas envoyée. Sa fille avait promis de venir samedi, mais "
        "la pluie avait emporté les routes.",
    ),
    "German": (
        "latin-1 cp850",
        "Am Morgen lag Nebel über dem Fluss, und der Fährmann zögerte lange, vom Ufer abzulegen. "
        "Er hörte, wie weit hinter dem Wald ein Zug pfiff, und dachte an den Brief, den er "
        "schließlich nicht abgeschickt hatte. Die Tochter hatte versprochen, am Samstag zu "
        "kommen, aber die Straßen waren überschwemmt.",
    ),
    "Swedish": (
        "latin-1",
        "På morgonen låg dimman över älven, och färjkarlen vågade länge inte lägga ut från "
        "stranden. Han hörde ett tåg vissla långt borta bakom skogen och tänkte på brevet "
        "som han till slut inte hade skickat.",
    ),
    "Spanish": (
        "latin-1",
        "Por la mañana había niebla sobre el río y el barquero no se atrevía a dejar la orilla. "
        "Oía silbar un tren muy lejos, detrás del bosque, y pensaba en la carta que al final "
        "no envió. Su hija prometió venir el sábado, pero la lluvia se llevó los caminos. "
        "¿Vendría mañana, en el año nuevo?",
    ),
    "Portuguese": (
        "latin-1",
        "De manhã havia névoa sobre o rio e o barqueiro não se atrevia a deixar a margem. "
        "Ouvia um comboio apitar muito longe, atrás da floresta, e pensava na carta que afinal "
        "não enviou. A filha prometera vir no sábado, mas a chuva levou as estradas e os "
        "autocarros já não circulavam.",
    ),
    "English": (
        "cp1252",
        "In the morning “fog” lay over the river, and the ferryman didn’t dare to leave the "
        "bank – not yet. He heard a train whistle far behind the forest, and thought of the "
        "letter that he’d never sent.",
    ),
}
CASES = [
    (language, encoding, text)
    for language, (encodings, text) in TEXTS.items()
    for encoding in encodings.split()
]


@pytest.mark.parametrize(("language", "encoding", "text"), CASES)
@pytest.mark.parametrize("size", [100, 400, 3_000])
def test_a_text_in_an_older_encoding_is_read_right(tmp_path, language, encoding, text, size):
    raw = (text * 12).encode(encoding)[:size]
    expected = decodes(raw, encoding)
    if expected.isascii():
        return
    (tmp_path / "a.txt").write_bytes(expected.encode(encoding))
    assert list(read_documents(tmp_path / "a.txt")) == [expected]


@pytest.mark.parametrize(
    ("language", "encoding", "text"),
    [case for case in CASES if case[1].replace("-", "_") not in RARE],
)
def test_a_few_words_are_read_right_or_refused(language, encoding, text):
    words = text.split()
    for start in range(0, len(words), 5):
        raw = " ".join(words[start : start + 10]).encode(encoding)
        if raw.isascii():
            continue
        found = recognise(raw)
        assert found is None or decodes(raw, found) == decodes(raw, encoding)


@pytest.mark.parametrize(
    "raw",
    [
        "옛날 옛적에 호랑이가 담배 피우던 시절에".encode("johab"),
        "Once upon a time there lived a king".encode("cp037"),
        bytes(range(128, 256)) * 4,
        "买牛奶".encode("gbk"),
    ],
)
def test_what_is_not_recognised_is_refused_by_name_with_the_remedy(tmp_path, raw):
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(UnfitText, match=r"a\.txt: .*save it as UTF-8, or name its encoding"):
        list(read_documents(tmp_path / "a.txt"))


def test_noise_is_no_text():
    noise = random.Random(7)
    for size in (20, 60, 500):
        for _ in range(50):
            assert recognise(bytes(noise.randrange(32, 256) for _ in range(size)) + b"\xff") is None


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_is_one_that_python_knows(encoding):
    assert decodes(b"plain", encoding) == "plain"


NOT_GARBLED = (
    "NESTLÉ® requiere personal",
    "La CENICIENTAº y el príncipe",
    "PARCE QUE SUR CETTE PLAQUE IL EST MARQUÉ… RIEN",
    "AHÅ™, the new sofa; AHÅ™ in red, AHÅ™ in green",
    "CAFÉ™ et THÉ™ et PÂTÉ®",
    "DÉJÀ» dit-il",
    "Ã",
    "Â©",
    "Ã©",
    "TEMPÉRATURE : Ã 20 °C",
    "les caractères Ã© et Ã¨ viennent d’un mauvais décodage",
    "Its mojibake is â€™ and â€œ, says the “manual”",
    "À°Ç±",
    "É… È… Ê… Ë…",
    "ÑÑÑ ÁÁÁ ÑÁ",
    "ÀÉÈ",
    "3 Ä¥ 4 Ä¥ 5 Ä¥ 6",
    "Å° Å± Å²",
    "SÃO PAULO, BRASÍLIA® E MACEIÓ",
    "ÎÎÎ ÎŠ ÎŽ",
    "ÖVER© ÅR® ÄR™",
    "10 µm ± 2 µm × 3",
    "«À»",
    "ÜBERGRÖ߀",
    "IKÉŠ",
    "Ð and Þ, ð and þ",
    "¿QUÉ? ¡SÍ! ¿QUÉ®?",
    "naïve café, façade – “œuvre”",
    "Привет, как дела? Хорошо.",
    "日本語の文章です。",
    "Việt Nam quê hương tôi",
    "½ Ã ½, ¼ Â ¼",
    "MÉ­DI­A",
)


@pytest.mark.parametrize("text", NOT_GARBLED)
def test_text_that_looks_a_little_like_mojibake_stays_as_it_is(text):
    for whole in (text, f"{text}. {text}; {text}!", f"Before: {text}"):
        assert decode(whole.encode()).text == whole.replace("\u2028", "\n")


@pytest.mark.parametrize(
    "text",
    [
        "it’s “late” – isn’t it?",
        "Zoë’s café — “naïve” price: £5",
        "Äpfel, Öl und Übermut im Frühjahr",
        "La niña pequeña comió piñas en el jardín",
        "Привет, как твои дела сегодня?",
        "日本語の文章です。漢字も使います。",
    ],
)
@pytest.mark.parametrize("wrong", ["latin-1", "cp1252"])
def test_a_text_that_was_encoded_twice_is_mended(text, wrong):
    garbled = text.encode().decode(wrong, "surrogateescape")
    garbled = "".join(chr(ord(each) - 0xDC00) if each > "\udc00" else each for each in garbled)
    decoded = decode(garbled.encode("utf-8", "surrogatepass"))
    assert (decoded.text, decoded.encoding) == (text, "utf-8 twice")
