//! Where a key may be used from.

use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A network, or an address as the network of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(pub IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let net = match text.parse::<std::net::IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => text
                .parse::<IpNet>()
                .map_err(|_| format!("{text:?} is no address and no network such as 10.0.0.0/8"))?,
        };
        let net = canonical(net);
        if net.trunc() == net { Ok(Self(net)) } else { Err(format!("{text:?} has host bits; write {}", net.trunc())) }
    }
}

/// A network of IPv4 addresses in IPv6's clothes is the IPv4 network: so their clients are compared.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let mapped = v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96));
    mapped.and_then(|(v4, prefix)| Ipv4Net::new(v4, prefix).ok()).map_or(net, IpNet::V4)
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_says_what_is_wrong_with_it() {
        assert_eq!("10.0.0.1".parse::<Network>().unwrap().0.to_string(), "10.0.0.1/32");
        assert!("10.0.0.1/8".parse::<Network>().unwrap_err().contains("10.0.0.0/8"));
        assert!("10.0.0".parse::<Network>().is_err());
        for (written, meant) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:10.0.0.1", "10.0.0.1/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
        ] {
            assert_eq!(written.parse::<Network>().unwrap().0.to_string(), meant);
        }
        assert!("::ffff:10.0.0.1/104".parse::<Network>().unwrap_err().contains("write 10.0.0.0/8"));
    }
}
