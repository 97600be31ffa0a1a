//! The commands of readers, asked among all others.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::commands::{Check, Command, KEYS, TOKENS};

const ACQUIRE_SCRIPT: &str = "local k=KEYS[1] local m='redlatch:readers:1' local y=redis.call('type',k).ok local w=redis.call('pttl',k) \
if w==-1 or y~='none' and (y~='zset' or not redis.call('zscore',k,m)) then return w end local \
t=redis.call('time') local n=t[1]*1000+math.floor(t[2]/1000) local \
s=tonumber(redis.call('zscore',k,ARGV[1]) or 0) w=redis.call('pttl',KEYS[2]) if w~=-2 and s<=n then \
return w end redis.call('zadd',k,'-inf',m,math.max(s,n+1+ARGV[2]),ARGV[1]) \
redis.call('zremrangebyscore',k,0,n) \
redis.call('pexpireat',k,redis.call('zrange',k,-1,-1,'withscores')[2]) return redis.status_reply(s>n and \
'OWN' or 'OK')";
const EXTEND_SCRIPT: &str = "local k=KEYS[1] local t=redis.call('time') local n=t[1]*1000+math.floor(t[2]/1000) local \
s=redis.call('zscore',k,ARGV[1]) if not s or tonumber(s)<=n then return 0 end \
redis.call('zremrangebyscore',k,0,n) redis.call('zadd',k,n+1+ARGV[2],ARGV[1]) \
redis.call('pexpireat',k,redis.call('zrange',k,-1,-1,'withscores')[2]) return 1";
const INTENT_SCRIPT: &str = "local v=redis.call('get',KEYS[1]) \
if v and string.sub(v,1,11)~='redlatch:1:' then return 0 end redis.call('set',KEYS[1],ARGV[1],'px',ARGV[2]) return 1";
const RELEASE_SCRIPT: &str = "local k=KEYS[1] if redis.call('zrem',k,ARGV[1])==0 then return 0 end local t=redis.call('time') \
redis.call('zremrangebyscore',k,0,t[1]*1000+math.floor(t[2]/1000)) local \
l=redis.call('zrange',k,-1,-1,'withscores')[2] if l and l~='-inf' then redis.call('pexpireat',k,l) return \
1 end redis.call('del',k) if ARGV[2]=='1' then local c=redis.pcall('publish',k,'') if type(c)=='number' \
and c>3 then redis.pcall('publish',k,c) end end return 1";
const ACQUIRE_SHA: &str = "40403f1fd78fac49640df43fa13f634f01426da0";
const EXTEND_SHA: &str = "2e31d30570819fcc1f873dcaba865981d032183f";
const RELEASE_SHA: &str = "8bcc5ea66f5e8c922d41a4d11f7b9d836536d5fe";

/// Readers that come, stay and go, beside whatever else is at the key. Their time is long: a set of which only some are
/// over tells nobody when, so that a race could decide a reply.
pub(super) fn draw(rng: &mut StdRng) -> Command {
    let key = *KEYS.choose(rng).expect("not empty");
    let value = *TOKENS.choose(rng).expect("not empty");
    // An intent, or what may be a key of any kind.
    let mut intent = [b"redlatch:writer:", key].concat();
    if rng.random_range(0..8) == 0 {
        intent = KEYS.iter().find(|other| **other != key).expect("several").to_vec();
    }
    let ttl = u64::to_string(&rng.random_range(3_600_000..7_200_000));
    let ttl = ttl.as_bytes();
    let is_whole = rng.random();
    let name: &[u8] = if is_whole { b"EVAL" } else { b"EVALSHA" };
    let script =
        |text: &'static str, sha: &'static str| if is_whole { text.as_bytes() } else { sha.as_bytes() };
    match rng.random_range(0..12) {
        0..5 => Command {
            check: Check::TimeLeftOr,
            ..Command::of(&[name, script(ACQUIRE_SCRIPT, ACQUIRE_SHA), b"2", key, &intent, value, ttl])
        },
        5..7 => Command::of(&[name, script(EXTEND_SCRIPT, EXTEND_SHA), b"1", key, value, ttl]),
        7..9 => {
            let tells: &[u8] = if rng.random() { b"1" } else { b"0" };
            Command::of(&[name, script(RELEASE_SCRIPT, RELEASE_SHA), b"1", key, value, tells])
        }
        9 => Command::of(&[b"ZREVRANK", key, b"redlatch:readers:1"]),
        10 if rng.random() => Command::of(&[b"SET", &intent, value, b"PX", ttl]),
        10 if rng.random() => {
            let value = [b"redlatch:1:", value].concat();
            Command::of(&[b"EVAL", INTENT_SCRIPT.as_bytes(), b"1", &intent, &value, ttl])
        }
        10 => Command::of(&[b"DEL", &intent]),
        _ => Command::of(&[b"DEL", key]),
    }
}

/// Each script by itself, to be loaded.
pub(super) fn draw_load(rng: &mut StdRng) -> Command {
    let text = [ACQUIRE_SCRIPT, EXTEND_SCRIPT, RELEASE_SCRIPT][rng.random_range(0..3)];
    Command::of(&[b"SCRIPT", b"LOAD", text.as_bytes()])
}
