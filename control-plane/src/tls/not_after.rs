//! The end of a certificate. A reader of X.509 for this one field: RFC 5280, 4.1.

use chrono::{DateTime, NaiveDateTime, Utc};

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// `[0] EXPLICIT`, around the version.
const VERSION: u8 = 0xa0;

/// Until when a certificate (DER) is valid; `None` for what is none.
pub fn not_after(certificate: &[u8]) -> Option<DateTime<Utc>> {
    let (mut to_be_signed, _) = inside(inside(certificate, SEQUENCE)?.0, SEQUENCE)?;
    if to_be_signed.first() == Some(&VERSION) {
        to_be_signed = inside(to_be_signed, VERSION)?.1;
    }
    // Serial number, signature algorithm, issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        to_be_signed = inside(to_be_signed, tag)?.1;
    }
    let (validity, _) = inside(to_be_signed, SEQUENCE)?;
    let (_, not_after) = time(validity)?;
    time(not_after).map(|(time, _)| time)
}

/// The content of an element with this tag, and what follows it.
fn inside(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (head, rest) = der.split_at_checked(2)?;
    let [found, length] = *head else { return None };
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // Longer ones say first how many bytes the length has.
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    (found == tag).then(|| rest.split_at_checked(length))?
}

fn time(der: &[u8]) -> Option<(DateTime<Utc>, &[u8])> {
    let tag = *der.first()?;
    let (text, rest) = inside(der, tag)?;
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        // Two digits: from 1950 to 2049.
        UTC_TIME => format!("{}{text}", if text.get(..2)?.parse::<u8>().ok()? < 50 { "20" } else { "19" }),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    Some((NaiveDateTime::parse_from_str(&text, "%Y%m%d%H%M%SZ").ok()?.and_utc(), rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read() {
        let key = KeyPair::generate().unwrap();
        for (year, told) in [(2031, "2031-02-03T00:00:00+00:00"), (2077, "2077-02-03T00:00:00+00:00")] {
            let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, 2, 3);
            let certificate = params.self_signed(&key).unwrap();
            let der: &[u8] = certificate.der();
            assert_eq!(not_after(der).unwrap().to_rfc3339(), told);
            for length in 0..der.len().min(200) {
                assert_eq!(not_after(&der[..length]), None, "{length}");
            }
        }
        assert_eq!(not_after(b"no certificate"), None);
        assert_eq!(not_after(&[SEQUENCE, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
