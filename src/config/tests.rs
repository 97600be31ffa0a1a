//! Settings and their checks.

use redlatch_support::assert_golden;

use super::*;

/// Settings for a double's masters. The double's own settings belong to another copy of this package.
#[cfg(unix)]
pub(crate) fn of_double(double: &redlatch_testing::Double) -> ConfigBuilder {
    let (answer_timeout, connect_timeout) = (Duration::from_secs(2), Duration::from_secs(5));
    Config::builder().masters(double.urls()).answer_timeout(answer_timeout).connect_timeout(connect_timeout)
}

fn one() -> ConfigBuilder {
    Config::builder().master("redis://h")
}

// I123
#[test]
fn a_delay_function_is_called_for_the_settings_only() {
    let mut called = Vec::new();
    let config = one()
        .retry_delay_by(|failed| {
            called.push(failed);
            Duration::from_millis(failed.into())
        })
        .build()
        .expect("valid settings");
    assert!(called.into_iter().eq(1..=64));
    let after = |failed| config.retry_delay_after(failed).map(|delay| delay.as_millis());
    assert_eq!([after(1), after(2)], [Some(1), Some(2)]);
    assert_eq!([after(64), after(65), after(u32::MAX)], [Some(64); 3]);
    assert_eq!(one().build().expect("valid settings").retry_delay_after(1), None);
}

/// The power overflows at 32, far beyond the longest delay.
#[test]
fn a_delay_function_may_grow_without_bound() {
    let config = one().retry_delay_by(|failed| Duration::from_millis(10) * 2_u32.pow(failed));
    let config = config.build().expect("valid settings");
    let after = |failed| config.retry_delay_after(failed).expect("a function is set");
    assert_eq!(after(1), Duration::from_millis(20));
    assert_eq!(after(23), Duration::from_millis(10 << 23));
    for failed in [24, 25, 32, 33, 64, 65, u32::MAX] {
        assert_eq!(after(failed), limits::TIME_LIMIT_MAX, "{failed}");
    }
}

#[test]
fn a_config_needs_one_to_thirty_two_different_masters() {
    let count =
        |count: usize| Config::builder().masters((0..count).map(|port| format!("redis://h:{}", port + 1)));
    assert_eq!(count(0).build().err(), Some(ConfigError::MasterCount { count: 0 }));
    assert_eq!(count(32).build().map(|config| config.master_count()), Ok(32));
    assert_eq!(count(33).build().err(), Some(ConfigError::MasterCount { count: 33 }));
    let twice = one().master("redis://other").master("redis://user:pw@h:6379/1").build();
    assert!(matches!(twice, Err(ConfigError::SameMaster { index: 2, other: 0, .. })), "{twice:?}");
}

#[test]
fn the_builder_shows_no_password() {
    assert!(!format!("{:?}", one().master("redis://me:s3cret@h2")).contains("s3cret"));
}

/// A time setting: its name, its method, its shortest and longest value.
type Row = (&'static str, fn(Duration) -> ConfigBuilder, Duration, Duration);

#[test]
fn each_setting_is_allowed_within_its_bounds() {
    let (ns, ms) = (Duration::from_nanos(1), Duration::from_millis(1));
    let day = limits::TIME_LIMIT_MAX;
    let rows: [Row; 7] = [
        // The shortest TTL that leaves 1 ms after drift and rounding.
        ("max_ttl", |time| one().max_ttl(time), 4 * ms, limits::MAX_TTL_MAX),
        ("answer_timeout", |time| one().answer_timeout(time), ms, day),
        ("connect_timeout", |time| one().connect_timeout(time), ms, day),
        ("spin", |time| one().spin(time), Duration::ZERO, limits::SPIN_MAX),
        ("retry_delay", |time| one().retry_delay(Duration::ZERO..=time), Duration::ZERO, day),
        ("retry_delay from 2ms", |time| one().retry_delay(Duration::from_millis(2)..=time), 2 * ms, day),
        ("max_hold", |time| one().max_hold(time), Duration::ZERO, Duration::MAX),
    ];
    let mut page = String::new();
    let mut show = |what: String, result: Result<Config, ConfigError>| {
        page +=
            &format!("{what}: {}\n", result.map_or_else(|error| error.to_string(), |_| "allowed".to_owned()));
    };
    for (name, set, min, max) in rows {
        for (time, is_allowed) in
            [(min.checked_sub(ns), false), (Some(min), true), (Some(max), true), (max.checked_add(ns), false)]
        {
            let Some(time) = time else { continue };
            let result = set(time).build();
            assert_eq!(result.is_ok(), is_allowed, "{name} {time:?}");
            show(format!("{name} {time:?}"), result);
        }
    }
    let sized = |size: usize| "x".repeat(size);
    for size in [0, 1, limits::PREFIX_SIZE_MAX, limits::PREFIX_SIZE_MAX + 1] {
        show(format!("prefix of {size} bytes"), one().prefix(sized(size)).build());
    }
    for size in [0, 1, limits::HOLDER_LABEL_SIZE_MAX, limits::HOLDER_LABEL_SIZE_MAX + 1] {
        show(format!("holder_label of {size} bytes"), one().holder_label(sized(size)).build());
    }
    for ppm in [0, limits::DRIFT_PPM_MAX, limits::DRIFT_PPM_MAX + 1] {
        show(format!("drift_ppm {ppm}"), one().drift_ppm(ppm).build());
    }
    for ppm in [0, 1, 1_000_000, 1_000_001] {
        show(format!("answer_timeout_ppm {ppm}"), one().answer_timeout_ppm(ppm).build());
    }
    for name in ["", "a", "two words", "two\nlines", "\u{e9}", "!~"] {
        show(format!("client_name {name:?}"), one().client_name(name).build());
    }
    show("holder_label of two lines".to_owned(), one().holder_label("two\nlines").build());
    show("a bad URL".to_owned(), one().master("redis://h2?x=1").build());
    let defaults = one().client_name("name").build().expect("valid");
    for (before, after) in shown(&defaults).into_iter().zip(shown(&all_set().build().expect("valid"))) {
        page += &format!("{before}; set: {}\n", after.split_once(' ').expect("a name and a value").1);
    }
    assert_golden("settings", &page);
}

/// Each setting by name and value.
fn shown(config: &Config) -> Vec<String> {
    let Config {
        masters,
        labels,
        prefix,
        client_name,
        holder_label,
        max_ttl,
        max_hold,
        drift,
        answer_timeout,
        connect_timeout,
        retry_delay_min,
        retry_delay_max,
        retry_delays,
        answer_ppm,
        quarantine,
        ask_holder,
        spin,
        wakes_waiters,
        records_fleet,
        observer,
        provider,
        password_file,
        // Tested in `tests/tls`.
        #[cfg(feature = "tls")]
            tls: _,
    } = config;
    let time = |time: &Option<Duration>| time.map_or("none".to_owned(), |time| format!("{time:?}"));
    let is_set = |is_set: bool| if is_set { "given" } else { "none" };
    let delays = retry_delays.as_deref().map_or("none".to_owned(), |delays| {
        format!("{} from {:?} to {:?}", delays.len(), delays[0], delays[delays.len() - 1])
    });
    let quarantine = match quarantine {
        Quarantine::Uptime => "uptime",
        Quarantine::Strict => "strict",
        Quarantine::Trust => "trust",
    };
    let masters: Vec<_> = masters.iter().map(ToString::to_string).collect();
    vec![
        format!("masters {}", masters.join(" ")),
        format!("labels {}", labels.join(" ")),
        format!("prefix {:?}", String::from_utf8_lossy(prefix)),
        format!("client_name {client_name}"),
        format!("holder_label {}", holder_label.as_deref().unwrap_or("none")),
        format!("max_ttl {max_ttl:?}"),
        format!("max_hold {max_hold:?}"),
        format!("drift_ppm {}", drift.ppm()),
        format!("answer_timeout {}", time(answer_timeout)),
        format!("connect_timeout {connect_timeout:?}"),
        format!("retry_delay {retry_delay_min:?} to {retry_delay_max:?}"),
        format!("retry_delay_by {delays}"),
        format!("answer_timeout_ppm {}", answer_ppm.map_or("none".to_owned(), |ppm| ppm.to_string())),
        format!("quarantine {quarantine}"),
        format!("ask_holder {ask_holder}"),
        format!("spin {spin:?}"),
        format!("wake_waiters {wakes_waiters}"),
        format!("record_fleet {records_fleet}"),
        format!("on_event {}", is_set(observer.is_some())),
        format!("credentials {}", is_set(provider.is_some())),
        format!("password_file {}", is_set(password_file.is_some())),
    ]
}

/// Every setting differs from its default.
fn all_set() -> ConfigBuilder {
    let ms = Duration::from_millis;
    let builder = one().master("redis://h2:7/3").prefix("p:").client_name("name").holder_label("web-3");
    let builder =
        builder.max_ttl(ms(20_001)).drift_ppm(20_002).max_hold(ms(20_003)).spin(Duration::from_micros(9));
    let builder = builder.answer_timeout(ms(104)).answer_timeout_ppm(105).connect_timeout(ms(106));
    let builder = builder.retry_delay(ms(7)..=ms(108)).retry_delay_by(|count| ms(count.into()) * 400_000);
    let builder = builder.quarantine(Quarantine::Strict).ask_holder(false);
    let builder = builder.wake_waiters(false).record_fleet(false).on_event(|_| {});
    builder.credentials(|_| Err("none".into()))
}

// I110
#[test]
fn the_answer_limit_has_bounds_by_the_ttl() {
    let bounds = |config: &Config, ms| {
        let ttl = config.ttl(Duration::from_millis(ms)).expect("valid");
        (config.answer_limit_by(ttl, Duration::ZERO).as_millis(), config.answer_limit(ttl).as_millis())
    };
    let limit = |config: &Config, ms| {
        let (min, max) = bounds(config, ms);
        assert_eq!(min, max, "it was configured");
        max
    };
    let config = one().build().expect("valid");
    let by_ttl = [10, 250, 1000, 2500, 30_000].map(|ms| bounds(&config, ms));
    assert_eq!(by_ttl, [(5, 5), (5, 50), (20, 200), (50, 500), (50, 1000)]);
    let tiny = config.ttl(Duration::from_millis(4)).expect("valid");
    assert_eq!(config.answer_limit(tiny), tiny.validity(), "no longer than the lock is valid");
    let config = one().answer_timeout(Duration::from_millis(300)).build().expect("valid");
    assert_eq!(limit(&config, 1000), 300);
    let config = one().answer_timeout_ppm(50_000).build().expect("valid");
    assert_eq!([10, 1000, 30_000].map(|ms| limit(&config, ms)), [1, 50, 1500]);
    let config = one().answer_timeout_ppm(1_000_000).build().expect("valid");
    assert_eq!(limit(&config, 1000), 988, "no longer than the lock is valid");
}

#[test]
fn a_delay_function_is_not_called_beyond_a_day() {
    let mut called = Vec::new();
    let config = one().retry_delay_by(|failed| {
        called.push(failed);
        if failed < 3 { Duration::from_millis(1) } else { limits::TIME_LIMIT_MAX }
    });
    let config = config.build().expect("valid settings");
    assert_eq!(called, [1, 2, 3]);
    assert_eq!(config.retry_delay_after(u32::MAX), Some(limits::TIME_LIMIT_MAX));
}
