use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sluicegate_core::noun::{self as core, Nano};
use sluicegate_core::proto::policy as wire;
use sqlx::PgConnection;
use sqlx::types::Json;
use utoipa::ToSchema;

use super::super::{Fault, Write, WriteError};
use super::{NoFacts, Noun, Stored, Which, check_token, refer};

/// What a provider takes for a model. All amounts are dollars per million tokens (`image`: per million images,
/// `request`: per million requests). An absent kind costs what the plain one does: cached input and audio input as
/// `input`, an hour's cache write as a five-minute one, reasoning and audio output as `output`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub provider: String,
    /// The provider's own name of it.
    pub model: String,
    pub input: Dollars,
    pub output: Dollars,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_5m: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_in: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_out: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Dollars>,
    /// Other prices for large inputs, ascending. The last one whose `above` the whole input exceeds prices the whole request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
}

/// Prices from an input size on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Input tokens, cached ones included.
    pub above: u64,
    pub input: Dollars,
    pub output: Dollars,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_5m: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_in: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_out: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Dollars>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Dollars>,
}

/// An amount as a decimal string, `"2.50"`: exact, never a float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, example = "2.50")]
pub struct Dollars(pub Nano);

impl Serialize for Dollars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Dollars;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("dollars as a decimal string that is not negative, such as \"2.50\" (with the quotes)")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Dollars, E> {
                Nano::parse_dollars(text)
                    .map(Dollars)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl Tier {
    fn to_wire(&self) -> wire::Tier {
        let nano = |dollars: &Option<Dollars>| dollars.map(|d| d.0.0);
        wire::Tier {
            above: self.above,
            input: self.input.0.0,
            output: self.output.0.0,
            cache_read: nano(&self.cache_read),
            cache_write_5m: nano(&self.cache_write_5m),
            cache_write_1h: nano(&self.cache_write_1h),
            reasoning: nano(&self.reasoning),
            audio_in: nano(&self.audio_in),
            audio_out: nano(&self.audio_out),
            image: nano(&self.image).unwrap_or(0),
            request: nano(&self.request).unwrap_or(0),
        }
    }
}

impl Price {
    /// All tiers, the one from 0 on first.
    fn all_tiers(&self) -> Vec<Tier> {
        let first = Tier {
            above: 0,
            input: self.input,
            output: self.output,
            cache_read: self.cache_read,
            cache_write_5m: self.cache_write_5m,
            cache_write_1h: self.cache_write_1h,
            reasoning: self.reasoning,
            audio_in: self.audio_in,
            audio_out: self.audio_out,
            image: self.image,
            request: self.request,
        };
        std::iter::once(first).chain(self.tiers.iter().cloned()).collect()
    }

    fn from_tiers(provider: String, model: String, mut tiers: Vec<Tier>) -> Option<Self> {
        if tiers.is_empty() {
            return None;
        }
        let first = tiers.remove(0);
        Some(Self {
            provider,
            model,
            input: first.input,
            output: first.output,
            cache_read: first.cache_read,
            cache_write_5m: first.cache_write_5m,
            cache_write_1h: first.cache_write_1h,
            reasoning: first.reasoning,
            audio_in: first.audio_in,
            audio_out: first.audio_out,
            image: first.image,
            request: first.request,
            tiers,
        })
    }

    pub(in crate::store) fn to_wire(id: i32, tiers: &[Tier]) -> wire::Price {
        wire::Price { id: id.cast_unsigned(), tiers: tiers.iter().map(Tier::to_wire).collect() }
    }
}

/// Id, provider, model, tiers, when created.
type Row = (i32, String, String, Json<Vec<Tier>>, chrono::DateTime<chrono::Utc>);

const PROVIDER: &str = "select id from provider where name = $1";

impl Noun for Price {
    const KIND: &'static str = "price";
    const HOLD: &'static str = "select from price where id = $1 for no key update";
    type Facts = NoFacts;

    fn handle(&self) -> String {
        format!("{}/{}", self.provider, self.model)
    }

    fn check(&self) -> Result<(), Fault> {
        check_token("model", &self.model, true)?;
        // The compiler's first tier is the one without a number here.
        let field_of = |field: &str| match field.strip_prefix("tiers[").and_then(|rest| rest.split_once(']')) {
            Some(("0", rest)) => rest.trim_start_matches('.').to_owned(),
            Some((n, rest)) => format!("tiers[{}]{rest}", n.parse::<usize>().unwrap_or(1) - 1),
            None => field.to_owned(),
        };
        core::Price::compile(&Self::to_wire(1, &self.all_tiers()))
            .map_err(|e| Fault::new(field_of(&e.field), e.reason))?;
        Ok(())
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        // Provider names hold no slash.
        let (provider, model) = handle.split_once('/').unwrap_or((handle, ""));
        Ok(sqlx::query_scalar(
            "select r.id from price r join provider p on p.id = r.provider_id where p.name = $1 and r.model = $2",
        )
        .bind(provider)
        .bind(model)
        .fetch_optional(conn)
        .await?)
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select r.id, p.name, r.model, r.tiers, r.created_at from price r join provider p on p.id = r.provider_id
             where ($1::int is null or r.id = $1) and r.id > $2 order by r.id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        let stored = |(id, provider, model, Json(tiers), created_at)| {
            let noun = Self::from_tiers(provider, model, tiers)
                .ok_or_else(|| sqlx::Error::Decode("a price without tiers".into()))?;
            Ok(Stored { id, noun, facts: NoFacts {}, created_at })
        };
        rows.into_iter().map(stored).collect()
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        write.policy_changed();
        let provider = refer(write.conn(), PROVIDER, "provider", "provider", &self.provider).await?;
        Ok(sqlx::query_scalar("insert into price (provider_id, model, tiers) values ($1, $2, $3) returning id")
            .bind(provider)
            .bind(&self.model)
            .bind(Json(self.all_tiers()))
            .fetch_one(write.conn())
            .await?)
    }

    async fn update(&self, write: &mut Write, id: i32, _old: &Self) -> Result<(), WriteError> {
        write.policy_changed();
        let provider = refer(write.conn(), PROVIDER, "provider", "provider", &self.provider).await?;
        sqlx::query("update price set provider_id = $2, model = $3, tiers = $4 where id = $1")
            .bind(id)
            .bind(provider)
            .bind(&self.model)
            .bind(Json(self.all_tiers()))
            .execute(write.conn())
            .await?;
        Ok(())
    }

    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        write.policy_changed();
        sqlx::query("delete from price where id = $1").bind(id).execute(write.conn()).await?;
        Ok(())
    }
}
