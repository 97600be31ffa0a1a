//! Settings and their checks.

use super::*;

fn one() -> ConfigBuilder {
    Config::builder().master("redis://h")
}

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

/// Its power overflows at 32, far beyond the longest delay.
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

#[test]
fn settings_outside_their_bounds_are_refused() {
    let bad = [
        one().max_ttl(Duration::ZERO),
        one().max_ttl(Duration::from_millis(3)),
        one().max_ttl(limits::MAX_TTL_MAX + Duration::from_millis(1)),
        one().drift_ppm(limits::DRIFT_PPM_MAX + 1),
        one().prefix([b'x'; limits::PREFIX_SIZE_MAX + 1]),
        one().client_name("two words"),
        one().client_name(""),
        one().holder_label(""),
        one().holder_label("x".repeat(limits::HOLDER_LABEL_SIZE_MAX + 1)),
        one().holder_label("two\nlines"),
        one().answer_timeout(Duration::ZERO),
        one().connect_timeout(Duration::MAX),
        one().spin(limits::SPIN_MAX + Duration::from_nanos(1)),
        one().answer_timeout_ppm(0),
        one().answer_timeout_ppm(1_000_001),
        one().retry_delay(Duration::from_millis(2)..=Duration::from_millis(1)),
        one().master("redis://h2?x=1"),
    ];
    for (row, builder) in bad.into_iter().enumerate() {
        assert!(builder.build().is_err(), "row {row}");
    }
}

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
