import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.metadata import (
    BrokerEntryMetadata,
    BrokerTimeStamper,
    DoubleStampError,
    DuplicateStamperError,
    IndexStamper,
    MessageFormatError,
    MessageMetadata,
    PrefixError,
    PropertyTagsStamper,
    Sender,
    StampContext,
    Stamper,
    StamperChain,
    StamperFieldError,
    StamperLoadError,
    StampingError,
    UnknownStamperError,
    application_tags,
    field_numbers,
    headers_parsed,
    load_stampers,
    pack,
    pack_stamp,
    peek,
    split,
)
from pulsemark.metadata.stampers import join_stamper_names, split_stamper_names
from pulsemark.proto.broker_entry_pb2 import (
    CONTROL,
    CONTROL_TXN_ABORT,
    DATA,
    SOURCE_KAFKA_MAGIC_2,
)

TOPIC = "persistent://public/default/letters"
NOW_MS = 1_700_000_000_000


def message(**properties):
    """Headers and payload without checksum, as a stamper may get them."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    for key, value in properties.items():
        metadata.properties.add(key=key, value=value)
    return metadata.ByteSize().to_bytes(4, "big") + metadata.SerializeToString() + b"payload"


BODY = message(region="eu", tier="1")


class Custom:
    """A stamper whose one deed is given by the test, and what it says of itself."""

    def __init__(self, deed, name="custom", **says):
        self.name = name
        self.deed = deed
        for attribute, value in says.items():
            setattr(self, attribute, value)

    def stamp(self, context, metadata):
        """Do the deed."""
        self.deed(context, metadata)


def chain_of(*deeds):
    """A chain of stampers that do one deed each."""
    return StamperChain([Custom(deed, f"custom-{n}") for n, deed in enumerate(deeds)])


class TestChain:
    @pytest.mark.parametrize("order", [("broker-time", "index"), ("index", "broker-time")])
    def test_plain_stamp(self, order):
        """Time and index, in either order, give the bytes of pack_stamp."""
        chain = StamperChain.from_names(order)
        assert chain.names == order
        assert chain.prefix(TOPIC, NOW_MS, 41, 3, BODY) == pack_stamp(NOW_MS, 41)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("broker-time", BrokerEntryMetadata(broker_timestamp=NOW_MS)),
            ("index", BrokerEntryMetadata(index=41)),
        ],
    )
    def test_one_alone(self, name, expected):
        """Each of the two can be switched on alone; the other's field is then absent."""
        chain = StamperChain.from_names([name])
        assert chain.prefix(TOPIC, NOW_MS, 41, 3, BODY) == pack(expected)

    @settings(deadline=None)
    @given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
    def test_the_quick_way_is_the_long_way(self, now_ms, index):
        """The chain's short cut gives the bytes that its stampers themselves would write."""
        quick = StamperChain([BrokerTimeStamper(), IndexStamper()])
        slow = StamperChain([BrokerTimeStamper(), IndexStamper(), Custom(lambda *_: None)])
        stamp = (TOPIC, now_ms, index, 1, BODY)
        assert quick.prefix(*stamp) == slow.prefix(*stamp)

    def test_empty_chain(self):
        """Without stampers entries get no prefix."""
        chain = StamperChain()
        assert not chain
        assert StamperChain.from_names(["index"])
        assert chain.prefix(TOPIC, NOW_MS, 41, 1, BODY) == b""

    @pytest.mark.parametrize("message_count", [0, -1, -(2**31)])
    @pytest.mark.parametrize("names", [["broker-time", "index"], ["broker-time"]])
    def test_no_messages_no_prefix(self, names, message_count):
        """An entry that counts no message gets no prefix, as in Pulsar."""
        chain = StamperChain.from_names(names)
        assert chain.prefix(TOPIC, NOW_MS, 41, message_count, BODY) == b""
        assert chain.prefix(TOPIC, NOW_MS, 41, 1, BODY) != b""

    def test_nothing_to_write(self):
        """Stampers that write nothing make no prefix, rather than an empty one."""
        assert chain_of(lambda context, metadata: None).prefix(TOPIC, NOW_MS, 1, 1, BODY) == b""

    def test_base(self):
        """The store's own fields come along, and the caller's copy stays as it was."""
        base = BrokerEntryMetadata(entry_kind=CONTROL, leader_epoch=2)
        chain = StamperChain.from_names(["broker-time", "index"])
        metadata = peek(chain.prefix(TOPIC, NOW_MS, 41, 1, BODY, base=base))
        assert metadata == BrokerEntryMetadata(
            broker_timestamp=NOW_MS, index=41, entry_kind=CONTROL, leader_epoch=2
        )
        assert base == BrokerEntryMetadata(entry_kind=CONTROL, leader_epoch=2)

    def test_names(self):
        """A chain says what it is made of."""
        chain = StamperChain.from_names(["index", "property-tags:region"])
        assert chain.names == ("index", "property-tags")
        assert repr(chain) == "StamperChain(['index', 'property-tags'])"


class TestOnceOnly:
    @pytest.mark.parametrize("names", [[], ["index"], ["broker-time", "index"]])
    @pytest.mark.parametrize("message_count", [0, 1])
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_a_stamped_entry_is_refused(self, names, message_count, kind):
        """What begins with a prefix is never stamped, nor passed as unstamped, by any chain."""
        chain = StamperChain.from_names(names)
        for stamped in (pack_stamp(1, 2) + BODY, b"\x0e\x02"):
            with pytest.raises(DoubleStampError) as caught:
                chain.prefix(TOPIC, NOW_MS, 41, message_count, kind(stamped))
            assert caught.value.topic == TOPIC

    def test_its_own_work_is_refused(self):
        """The chain's own result cannot go through it again."""
        chain = StamperChain.from_names(["broker-time", "index", "property-tags:region"])
        stamped = chain.prefix(TOPIC, NOW_MS, 41, 1, BODY) + BODY
        with pytest.raises(DoubleStampError):
            chain.prefix(TOPIC, NOW_MS, 42, 1, stamped)
        assert split(stamped)[1] == BODY

    @pytest.mark.parametrize("names", [["index", "index"], ["index", "broker-time", "index"]])
    def test_a_stamper_is_in_a_chain_once(self, names):
        """The same stamper twice in one chain is refused, by name."""
        with pytest.raises(DuplicateStamperError) as caught:
            StamperChain.from_names(names)
        assert caught.value.name == "index"


class TestForeignStampers:
    def test_what_a_stamper_gets(self):
        """A stamper gets all there is to know, and the message parsed once for all of them."""
        seen = []
        sender = Sender("p", {"region": "eu"}, "client 1", "127.0.0.1:9")

        def look(context, metadata):
            seen.append((context, context.message_metadata()))

        stampers = [Custom(look, "a"), Custom(look, "b")]
        chain = StamperChain(stampers).at_broker("broker:6650")
        before = headers_parsed()
        chain.prefix(TOPIC, NOW_MS, 41, 3, BODY, sender=sender)
        context = seen[0][0]
        assert context == StampContext(TOPIC, NOW_MS, 41, 3, BODY, sender, "broker:6650")
        assert (context.kind, context.is_message) == (DATA, True)
        assert seen[0][1].producer_name == "p"
        assert seen[0][1] is seen[1][1]
        assert headers_parsed() - before == 1

    def test_each_gets_an_empty_message(self):
        """A plugin neither sees nor changes what others wrote; tags of one name: the last wins."""
        sizes = []

        def write(value):
            def deed(context, metadata):
                sizes.append(metadata.ByteSize())
                metadata.application_tags.add(key="k", value=value)
                metadata.application_tags.add(key=f"only-{value.decode()}", value=value)

            return deed

        chain = StamperChain(
            [*load_stampers(["broker-time", "index", "property-tags:region"]),
             Custom(write(b"1"), "one"), Custom(write(b"2"), "two")]
        )  # fmt: skip
        prefix = chain.prefix(TOPIC, NOW_MS, 41, 1, BODY)
        assert sizes == [0, 0]
        assert application_tags(peek(prefix)) == {
            "k": b"2", "only-1": b"1", "only-2": b"2", "region": b"eu"
        }  # fmt: skip
        assert prefix[6 : len(pack_stamp(NOW_MS, 41))] == pack_stamp(NOW_MS, 41)[6:]

    @pytest.mark.parametrize(
        "error", [RuntimeError("broken"), KeyError("x"), MessageFormatError("cut", 0)]
    )
    def test_failure(self, error):
        """Whatever a stamper raises comes out as one error that names it, with the cause."""

        def fail(context, metadata):
            raise error

        with pytest.raises(StampingError, match=type(error).__name__) as caught:
            chain_of(fail).prefix(TOPIC, NOW_MS, 41, 1, BODY)
        assert (caught.value.stamper, caught.value.topic) == ("custom-0", TOPIC)
        assert caught.value.__cause__ is error

    def test_too_much(self):
        """More than a prefix may hold is refused, not stored."""

        def write(context, metadata):
            metadata.application_tags.add(key="big", value=bytes(70_000))

        with pytest.raises(StampingError, match="limit") as caught:
            chain_of(write).prefix(TOPIC, NOW_MS, 41, 1, BODY)
        assert isinstance(caught.value.__cause__, PrefixError)

    @pytest.mark.parametrize("names", [["broker-time", "index"], ["broker-time"]])
    @pytest.mark.parametrize("now_ms", [-1, 2**64])
    def test_a_time_that_no_prefix_can_hold(self, names, now_ms):
        """A time that is no uint64 fails the stamp with the same error on every method."""
        with pytest.raises(StampingError, match=r"0 to|range") as caught:
            StamperChain.from_names(names).prefix(TOPIC, now_ms, 0, 1, BODY)
        assert "broker-time" in caught.value.stamper


def raw_field(number, value):
    """A varint field's bytes, as a plugin without generated code writes them."""
    return encoded_varint(number << 3) + encoded_varint(value)


def encoded_varint(number):
    """Protobuf's variable-length form."""
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def write_raw(number):
    """A deed: write the field of this number."""
    return lambda context, metadata: metadata.MergeFromString(raw_field(number, 7))


class TestFence:
    @pytest.mark.parametrize("number", [1, 2, 3, 100, 107, 112, 999, 1001, 19_000])
    def test_a_number_that_is_not_its_own(self, number):
        """A plugin that writes another number than it said fails the append with its name."""
        bad = Custom(write_raw(number), "bad", fields={1000})
        chain = StamperChain([*load_stampers(["broker-time", "index"]), bad])
        with pytest.raises(StampingError, match=f"field {number} ") as caught:
            chain.prefix(TOPIC, NOW_MS, 41, 1, BODY)
        assert caught.value.stamper == "bad"
        assert isinstance(caught.value.__cause__, StamperFieldError)

    @pytest.mark.parametrize("field", ["broker_timestamp", "index", "raw_size_bytes", "tombstone"])
    def test_the_brokers_fields(self, field):
        """Time, index and system tags are written only by the broker, whatever the value."""
        bad = Custom(lambda context, metadata: setattr(metadata, field, 41), "bad")
        with pytest.raises(StampingError, match="not stamper 'bad''s own"):
            StamperChain([bad]).prefix(TOPIC, 41, 41, 1, BODY)

    def test_a_stamper_that_says_nothing_writes_tags(self):
        """Without `fields` a plugin may write application tags, and nothing else."""
        tag = Custom(lambda _, metadata: metadata.application_tags.add(key="k", value=b"v"))
        prefix = StamperChain([tag]).prefix(TOPIC, NOW_MS, 41, 1, BODY)
        assert application_tags(peek(prefix)) == {"k": b"v"}
        with pytest.raises(StampingError, match="field 1000"):
            chain_of(write_raw(1000)).prefix(TOPIC, NOW_MS, 41, 1, BODY)

    @pytest.mark.parametrize("number", [1000, 18_999])
    def test_its_own_number(self, number):
        """Numbers from 1000 to 18999 are stored as the plugin wrote them, beside time and index."""
        own = Custom(write_raw(number), "own", fields=[number])
        chain = StamperChain([own, *load_stampers(["index", "broker-time"])])
        prefix = chain.prefix(TOPIC, NOW_MS, 41, 1, BODY)
        stamp = pack_stamp(NOW_MS, 41)
        assert prefix[6:] == stamp[6:] + raw_field(number, 7)
        assert field_numbers(prefix[6:]) == {1, 2, number}

    @pytest.mark.parametrize("number", [-1, 0, 1, 2, 110, 999, 19_000])
    def test_a_wrong_number_is_seen_when_the_chain_is_made(self, number):
        """A plugin that claims a number outside its range never gets into a chain."""
        with pytest.raises(StamperFieldError, match="1000 to 18999") as caught:
            StamperChain([Custom(write_raw(number), "bad", fields={number, 109})])
        assert (caught.value.name, caught.value.field) == ("bad", number)

    def test_two_plugins_and_one_number(self):
        """Two plugins that claim one number cannot be in one chain."""
        stampers = [Custom(write_raw(1000), name, fields={1000}) for name in ("one", "two")]
        with pytest.raises(StamperFieldError, match="'one' writes it too") as caught:
            StamperChain(stampers)
        assert (caught.value.name, caught.value.field) == ("two", 1000)

    @pytest.mark.parametrize("fields", [5, "ab", [None]])
    def test_what_is_no_set_of_numbers(self, fields):
        """`fields` that hold no numbers are refused with the stamper's name."""
        with pytest.raises(StamperFieldError, match="not a set of field numbers") as caught:
            StamperChain([Custom(write_raw(1000), "bad", fields=fields)])
        assert caught.value.name == "bad"


def test_a_name_does_not_make_a_stamp_of_time():
    """A chain stamps time if the built-in stamper is in it, whatever a plugin calls itself."""
    assert StamperChain.from_names(["index", "broker-time"]).stamps_time
    assert not StamperChain([Custom(lambda *_: None, "broker-time")]).stamps_time


class TestControlEntries:
    def test_only_those_that_ask(self):
        """A control entry is shown to plugins that say so; the others stamp producers' entries."""
        asked = []
        for stamps_control in (True, False, None):
            says = {} if stamps_control is None else {"stamps_control": stamps_control}
            stamper = Custom(
                lambda context, _, which=stamps_control: asked.append((which, context.kind)),
                **says,
            )
            chain = StamperChain([stamper])
            base = BrokerEntryMetadata(entry_kind=CONTROL, control_type=CONTROL_TXN_ABORT)
            chain.prefix(TOPIC, NOW_MS, 41, 1, b"", base=base)
            chain.prefix(TOPIC, NOW_MS, 41, 1, BODY)
        assert asked == [(True, CONTROL), (True, DATA), (False, DATA), (None, DATA)]

    def test_one_that_would_refuse_it_is_not_asked(self):
        """A plugin that cannot live with control entries does not stop the broker's marks."""

        def refuse(context, metadata):
            raise RuntimeError("no body")

        chain = StamperChain([Custom(refuse), *load_stampers(["broker-time", "index"])])
        base = BrokerEntryMetadata(entry_kind=CONTROL)
        expected = BrokerEntryMetadata(broker_timestamp=NOW_MS, index=41, entry_kind=CONTROL)
        assert peek(chain.prefix(TOPIC, NOW_MS, 41, 1, b"", base=base)) == expected

    def test_what_the_stamper_gets_of_it(self):
        """The context says what kind of entry it is, and what a control entry means."""
        seen = []
        stamper = Custom(lambda context, _: seen.append(context), stamps_control=True)
        base = BrokerEntryMetadata(entry_kind=CONTROL, control_type=CONTROL_TXN_ABORT)
        StamperChain([stamper]).prefix(TOPIC, NOW_MS, 41, 1, b"", base=base)
        (context,) = seen
        assert (context.kind, context.control_type) == (CONTROL, CONTROL_TXN_ABORT)
        assert not context.is_message


class TestPropertyTags:
    def stamp(self, argument, body=BODY, **facts):
        """The tags that the stamper of this argument gives to an entry."""
        (stamper,) = load_stampers([f"property-tags:{argument}"])
        metadata = BrokerEntryMetadata()
        stamper.stamp(StampContext(TOPIC, NOW_MS, 41, 1, body, **facts), metadata)
        return application_tags(metadata)

    def test_lifts_the_named_properties(self):
        """The policy's properties become tags, the others and absent ones do not."""
        assert self.stamp("region") == {"region": b"eu"}
        assert self.stamp(" tier , region,colour ") == {"region": b"eu", "tier": b"1"}
        assert self.stamp("colour") == {}

    def test_text_and_bytes(self):
        """Values are the property's bytes: UTF-8 of a text, and anything else as it was sent."""
        assert self.stamp("k", message(k="é")) == {"k": b"\xc3\xa9"}
        assert self.stamp("k", message(k="vv").replace(b"vv", b"\xff\xfe")) == {"k": b"\xff\xfe"}

    def test_a_key_that_is_not_text_is_not_named(self):
        """A property whose key is not UTF-8 cannot be asked for, and does no harm."""
        assert self.stamp("kk", message(kk="v").replace(b"kk", b"k\xff")) == {}

    def test_set_twice(self):
        """A property set twice counts as its last value."""
        body = message(aa="1", bb="2").replace(b"bb", b"aa")
        assert self.stamp("aa", body) == {"aa": b"2"}

    def test_bodies_that_are_no_messages(self):
        """Control entries and other formats are not searched for properties."""
        assert self.stamp("region", b"\x00", kind=CONTROL) == {}
        assert self.stamp("region", b"\x00", source_format=SOURCE_KAFKA_MAGIC_2) == {}
        with pytest.raises(MessageFormatError):
            self.stamp("region", b"\x00")

    def test_the_producers_properties(self):
        """What the entry does not say the producer says, so that a batch has tags, too."""
        sender = Sender("p", {"region": "us", "service": "shop", "other": "x"})
        assert self.stamp("region,service", sender=sender) == {"region": b"eu", "service": b"shop"}
        batch = message()
        assert self.stamp("region", batch, sender=sender) == {"region": b"us"}

    def test_in_a_chain(self):
        """Tags stand in the prefix beside time and index, after the fields of lower number."""
        chain = StamperChain.from_names(["property-tags:region", "broker-time", "index"])
        prefix = chain.prefix(TOPIC, NOW_MS, 41, 1, BODY)
        assert application_tags(peek(prefix)) == {"region": b"eu"}
        stamp = pack_stamp(NOW_MS, 41)
        assert prefix[6 : len(stamp)] == stamp[6:]

    @pytest.mark.parametrize("spec", ["property-tags", "property-tags:", "property-tags:a,,b"])
    def test_needs_names(self, spec):
        """Without the names of properties the stamper cannot be used."""
        with pytest.raises(StamperLoadError, match="needs the names") as caught:
            load_stampers([spec])
        assert caught.value.name == spec


PLUGIN_SOURCE = """
class Stamp:
    name = "from-plugin"

    def __init__(self, epoch="1"):
        self.epoch = b"%d" % int(epoch)

    def stamp(self, context, metadata):
        metadata.application_tags.add(key="epoch", value=self.epoch)

class Impostor(Stamp):
    name = "index"

class Greedy(Stamp):
    fields = [2]

class NotAStamper:
    name = "half"
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package with entry points of our group onto the path, as an installer does."""
    numbers = itertools.count()

    def add(entry_points):
        number = next(numbers)
        folder = tmp_path / f"site-{number}"
        info = folder / f"stamps_{number}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"stamps_{number}.py").write_text(PLUGIN_SOURCE)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: stamps-{number}\nVersion: 1.0\n"
        )
        lines = [f"{name} = stamps_{number}:{what}" for name, what in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[pulsemark.stampers]", *lines]))
        monkeypatch.syspath_prepend(folder)

    return add


class TestLoading:
    def test_built_in(self):
        """The built-in names give stampers, in the order asked for."""
        stampers = load_stampers(["index", "property-tags:a", "broker-time"])
        kinds = [IndexStamper, PropertyTagsStamper, BrokerTimeStamper]
        assert [type(stamper) for stamper in stampers] == kinds
        assert all(isinstance(stamper, Stamper) for stamper in stampers)
        assert [stamper.name for stamper in stampers] == ["index", "property-tags", "broker-time"]
        assert load_stampers([]) == []

    def test_unknown(self, install):
        """An unknown name is a typed error that lists the names there are, plugins too."""
        install({"epoch": "Stamp"})
        with pytest.raises(UnknownStamperError) as caught:
            load_stampers(["index", "brokertime"])
        assert caught.value.name == "brokertime"
        known = caught.value.known
        assert set(known) >= {"broker-time", "epoch", "index", "property-tags"}
        assert list(known) == sorted(known)

    def test_plugin(self, install):
        """An installed plugin stamps, with and without an argument."""
        install({"epoch": "Stamp"})
        for spec, epoch in (("epoch", b"1"), ("epoch:7", b"7")):
            chain = StamperChain.from_names(["index", spec])
            assert chain.names == ("index", "from-plugin")
            metadata = peek(chain.prefix(TOPIC, NOW_MS, 41, 1, BODY))
            assert metadata is not None
            assert (metadata.index, application_tags(metadata)) == (41, {"epoch": epoch})

    @pytest.mark.parametrize(
        ("what", "spec", "reason"),
        [
            ("Absent", "bad", "AttributeError"),
            ("Stamp", "bad:seven", "ValueError"),
            ("NotAStamper", "bad", "stamp()"),
            ("NotAStamper", "bad:x", "TypeError"),
            ("NotAStamper.name", "bad", "not callable"),
            ("Impostor", "bad", "'index', which is a built-in stamper"),
        ],
    )
    def test_broken_plugin(self, install, what, spec, reason):
        """A plugin that cannot be used is a typed error that says which and why."""
        install({"bad": what})
        with pytest.raises(StamperLoadError) as caught:
            load_stampers([spec])
        assert caught.value.name.startswith("bad")
        assert reason in caught.value.reason

    def test_a_plugin_that_claims_time_or_index(self, install):
        """A plugin that says it writes the broker's fields is refused before it stamps anything."""
        install({"greedy": "Greedy"})
        with pytest.raises(StamperFieldError) as caught:
            StamperChain.from_names(["broker-time", "greedy"])
        assert (caught.value.name, caught.value.field) == ("from-plugin", 2)

    def test_two_packages_offer_it(self, install):
        """Which of two plugins of one name is meant cannot be known: refused."""
        install({"epoch": "Stamp"})
        install({"epoch": "Stamp"})
        with pytest.raises(StamperLoadError, match=r"several packages.*stamps_0.*stamps_1"):
            load_stampers(["epoch"])

    def test_built_in_names_are_taken(self, install):
        """A plugin cannot put itself in the place of a built-in stamper."""
        install({"index": "Stamp"})
        assert isinstance(load_stampers(["index"])[0], IndexStamper)


# -- A list of stampers as one line of text


NAMES = st.from_regex(r"[a-z-]{1,8}(:[a-z, ]*[a-z])?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (" , ;", ()),
        ("index", ("index",)),
        ("broker-time,index", ("broker-time", "index")),
        (" broker-time , index ", ("broker-time", "index")),
        ("broker-time;index", ("broker-time", "index")),
        ("index,property-tags:region,app", ("index", "property-tags:region,app")),
        ("property-tags:region,app;index", ("property-tags:region,app", "index")),
        ("a:b:c,d", ("a:b:c,d",)),
        ("a:;b", ("a:", "b")),
    ],
)
def test_commas_separate_up_to_a_colon_and_semicolons_always(text, names):
    """What follows a name's colon is its argument, commas included, up to a semicolon."""
    assert split_stamper_names(text) == names


@given(st.lists(NAMES))
def test_a_joined_line_gives_the_names_again(names):
    """Whatever the arguments, as long as no semicolon is in them."""
    assert split_stamper_names(join_stamper_names(names)) == tuple(names)
