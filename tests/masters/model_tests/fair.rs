//! The commands of fair locks for `model_tests.rs`.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::commands::{Check, Command, KEYS, TOKENS, numbers};

pub(super) const SCRIPT: &str = "local q,b,i,k,h=KEYS[2],KEYS[3],ARGV[3],tonumber(ARGV[4]),tonumber(ARGV[5]) if k>-2 and k<1 and \
redis.call('exists',KEYS[1],q)==0 then redis.call('set',KEYS[1],ARGV[1],'px',ARGV[2]) return {2,-1,0,0} end \
if k<-1 and redis.call('exists',q)==0 then if ARGV[2]~='' and redis.call('exists',KEYS[1])==0 then \
redis.pcall('publish',KEYS[1],'') end return 0 end for _,s in ipairs({q,b}) do local \
m=redis.call('zrange',s,0,0)[1] if m and string.sub(m,1,11)~='redlatch:1:' then return \
redis.error_reply('ERR a set of somebody else is where the queue of this lock belongs') end end local t=redis.call('time') local \
n=t[1]*1000+math.floor(t[2]/1000) for _,r in ipairs({{'-inf',n},{n+h+1,'+inf'}}) do for _,m in \
ipairs(redis.call('zrangebyscore',b,r[1],r[2],'limit',0,100)) do redis.call('zrem',q,m) \
redis.call('zrem',b,m) end end if k==-2 then redis.call('zrem',q,i) redis.call('zrem',b,i) end if k<-1 then \
if ARGV[2]~='' and redis.call('exists',KEYS[1])==0 then local f=redis.call('zrange',q,0,0)[1] if f==i then \
return 0 elseif f then redis.pcall('publish',ARGV[2]..f,'') else redis.pcall('publish',KEYS[1],'') end end \
return 0 end if k>=0 then local s=redis.call('zscore',q,i) if not s and \
redis.call('zcard',q)>=tonumber(ARGV[6]) then return redis.error_reply('ERR too many wait for this lock') \
end if k==0 then if s then k=tonumber(s) else k=(redis.call('zrevrange',q,0,0,'withscores')[2] or 0)+1 end \
end if tonumber(s)~=k then redis.call('zadd',q,k,i) end redis.call('zadd',b,n+h,i) \
redis.call('pexpire',q,2*h) redis.call('pexpire',b,2*h) end local a=redis.call('zrank',q,i) or \
redis.call('zcard',q) local l=redis.call('pttl',KEYS[1]) if l~=-2 then return {0,k,a,l} end if a>0 then \
local f=redis.call('zrange',q,0,0)[1] local e=redis.call('zscore',b,f) if not e then redis.call('zrem',q,f) \
end return {1,k,a,math.max((e or n)-n,0)} end redis.call('set',KEYS[1],ARGV[1],'px',ARGV[2]) if k>=0 then \
redis.call('zadd',b,n+math.min(h,tonumber(ARGV[2])),i) end return {2,k,0,0}";
const SHA: &str = "02d9ee81584b636cc1e0a982c4e02708eeee8ca2";

/// Fair locks: some waiters who come, come again and go; heartbeats so long that only a shorter one finds them endless.
pub(super) fn draw(rng: &mut StdRng) -> Command {
    let key = *KEYS.choose(rng).expect("not empty");
    let value = *TOKENS.choose(rng).expect("not empty");
    let ids =
        [b"redlatch:1:1".as_slice(), b"redlatch:1:\0\r\n", b"redlatch:1:3", b"redlatch:1:", b"redlatch:1:5"];
    let id = ids[rng.random_range(0..5)];
    let (tickets, heartbeats) = ([b"redlatch:fair:t:", key].concat(), [b"redlatch:fair:h:", key].concat());
    let is_whole = rng.random();
    let (name, script) = if is_whole { ("EVAL", SCRIPT) } else { ("EVALSHA", SHA) };
    let (name, script) = (name.as_bytes(), script.as_bytes());
    let heartbeat: &[u8] = if rng.random_range(0..12) == 0 { b"600000" } else { b"900000" };
    if rng.random_range(0..4) == 0 {
        let ticket: &[u8] = if rng.random_range(0..3) == 0 { b"-3" } else { b"-2" };
        let channel: &[u8] = if rng.random() { b"c:" } else { b"" };
        let words = [name, script, b"3", key, &tickets, &heartbeats, value, channel, id, ticket, heartbeat];
        return Command::of(&words);
    }
    let ticket: &[u8] =
        [b"-1".as_slice(), b"0", b"0", b"0", b"1", b"2", b"7", b"4503599627370496"][rng.random_range(0..8)];
    let is_short = rng.random_range(0..4) == 0;
    let ttl = u64::to_string(&if is_short { rng.random_range(1..=5) } else { 3_600_000 });
    let count_max: &[u8] = if rng.random_range(0..8) == 0 { b"2" } else { b"100" };
    let words = [
        name,
        script,
        b"3",
        key,
        &tickets,
        &heartbeats,
        value,
        ttl.as_bytes(),
        id,
        ticket,
        heartbeat,
        count_max,
    ];
    Command { check: Check::Fair, short_lived: is_short.then_some(key), ..Command::of(&words) }
}

/// Whether lock and queue are told alike: the times left may differ.
pub(super) fn is_queued_alike(server: &[u8], model: &[u8], slack: Duration) -> bool {
    let (Some(of_server), Some(of_model)) = (numbers(server), numbers(model)) else { return server == model };
    let ([told @ .., left], [other_told @ .., other_left]) = (of_server.as_slice(), of_model.as_slice())
    else {
        return false;
    };
    let slack_ms = i64::try_from(slack.as_millis()).expect("short") + 3;
    told == other_told
        && (left - other_left).abs() <= slack_ms
        && (left.is_negative() == other_left.is_negative())
}
