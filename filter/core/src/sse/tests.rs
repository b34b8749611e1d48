use proptest::prelude::*;

use super::*;

/// Everything that comes out: raw bytes with their payload, where there is one.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    raw: Vec<u8>,
    data: Vec<Vec<u8>>,
    names: Vec<Vec<u8>>,
    opaque: usize,
}

impl Seen {
    fn event(&mut self, event: Event<'_>) {
        self.raw.extend_from_slice(event.raw());
        self.data.extend(event.data().map(Cow::into_owned));
        self.names.extend(event.name().map(<[u8]>::to_vec));
    }

    fn piece(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Event(event) => self.event(event),
            Piece::Tail(raw) => self.raw.extend_from_slice(raw),
            Piece::Opaque(raw) => {
                self.raw.extend_from_slice(raw);
                self.opaque += raw.len();
            }
        }
    }
}

fn split<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut seen = Seen::default();
    let mut splitter = Splitter::default();
    for chunk in chunks {
        splitter.push(chunk, |piece| seen.piece(piece));
        assert!(splitter.held() <= MAX_EVENT);
    }
    splitter.finish(|event| seen.event(event));
    seen
}

fn payloads(stream: &str) -> Vec<String> {
    split([stream.as_bytes()]).data.into_iter().map(|data| String::from_utf8(data).unwrap()).collect()
}

#[test]
fn fields_as_the_standard_reads_them() {
    for end in ["\n", "\r\n", "\r"] {
        let stream = [
            "\u{feff}data: a",
            "",
            ": comment",
            "",
            "event: error",
            "id: 1",
            "data:b",
            "data",
            "data:  c",
            "",
            "",
            "dataset: x",
            " data: y",
            "data: d: e",
            "",
            "data: last",
        ]
        .join(end);
        assert_eq!(payloads(&stream), ["a", "b\n\n c", "d: e", "last"], "{end:?}");
        assert_eq!(split([stream.as_bytes()]).names, [b"error"]);
    }
}

#[test]
fn an_event_comes_out_with_its_last_byte() {
    let mut splitter = Splitter::default();
    for (chunk, expected) in [
        ("data: a\n", 0),
        ("\n", 1),
        ("data: b\r\n\r", 1),
        // The LF of that CRLF, then an event ended by CR alone.
        ("\ndata: c\r\r", 1),
        ("data: d\n\ndata: e\n\nda", 2),
        ("ta: f\n\n", 1),
    ] {
        let mut events = 0;
        splitter.push(chunk.as_bytes(), |piece| events += usize::from(matches!(piece, Piece::Event(_))));
        assert_eq!(events, expected, "{chunk:?}");
    }
    assert!(splitter.at_boundary());
}

#[test]
fn an_event_too_long_passes_unread() {
    let fits = format!("data: {}\n", "x".repeat(MAX_EVENT - 7));
    let long = format!("data: {}\n", "x".repeat(MAX_EVENT - 6));
    for (event, opaque) in [(fits, 0), (long, MAX_EVENT + 2)] {
        let stream = format!("data: a\n\n{event}\ndata: b\n\n");
        for size in [stream.len(), 1 << 16, 1_000_003] {
            let seen = split(stream.as_bytes().chunks(size));
            assert_eq!(seen.raw, stream.as_bytes());
            assert_eq!((seen.opaque, seen.data.len()), (opaque, if opaque == 0 { 3 } else { 2 }), "{size}");
        }
    }
    let endless = vec![b'x'; 4 * MAX_EVENT];
    assert_eq!(split(endless.chunks(1 << 14)).opaque, endless.len());
}

#[test]
fn payload_bytes_are_found_in_the_raw_event() {
    let raw = "event: e\r\ndata: ab\r\ndata:\r\nid: 1\r\ndata:cd\r\n\r\n".as_bytes();
    let event = Event { raw };
    let data = event.data().unwrap();
    assert_eq!(&*data, b"ab\n\ncd");
    for (at, byte) in data.iter().enumerate().filter(|(_, byte)| **byte != b'\n') {
        assert_eq!(raw[event.raw_offset(at).unwrap()], *byte);
    }
    assert_eq!(event.raw_offset(data.len()), Some(raw.len() - 4));
    assert_eq!(event.raw_offset(data.len() + 1), None);
}

#[test]
fn debug_shows_no_text() {
    let mut splitter = Splitter::default();
    splitter.push(b"data: private", |_| {});
    let event = Event { raw: b"data: private\n\n" };
    assert!(!format!("{splitter:?} {event:?}").contains("private"));
}

proptest! {
    #[test]
    fn any_split_gives_the_same(
        stream in prop::collection::vec(
            prop::sample::select(&["\n", "\r", "\r\n", "\n\n", "data: ", "data:é😀", "x", "event: e", ":", "\u{feff}", "\u{2028}"][..]),
            0..30,
        ),
        sizes in prop::collection::vec(0..6_usize, 0..40),
    ) {
        let stream = stream.concat();
        let whole = split([stream.as_bytes()]);
        prop_assert_eq!(&whole.raw, stream.as_bytes());
        let mut rest = stream.as_bytes();
        let mut chunks = Vec::new();
        for size in sizes {
            let (chunk, left) = rest.split_at(size.min(rest.len()));
            chunks.push(chunk);
            rest = left;
        }
        chunks.push(rest);
        prop_assert_eq!(&split(chunks), &whole);
        prop_assert_eq!(&split(stream.as_bytes().chunks(1)), &whole);
    }
}
