//! Credentials that change on open connections.

use redlatch::Credentials;
use redlatch::status::Warning;

use super::*;

/// The masters' password changes, and the client gets these credentials.
fn change(world: &mut World, client: usize, password: &str) {
    let now = world.local(client);
    for master in 0..world.masters.len() {
        let credentials = Credentials::new(password).user("me");
        world.clients[client].engine.handle_credentials(now, id(master), Ok(credentials));
    }
    world.wake(client, world.now);
    world.run_for(10 * MS);
}

fn set_password(world: &mut World, password: &str) {
    world.masters.iter_mut().for_each(|it| it.model.password = Some(password.to_owned()));
}

fn warnings(world: &World, client: usize) -> Vec<Warning> {
    let health = world.clients[client].engine.health(world.local(client));
    health.masters.into_iter().flat_map(|master| master.warnings).collect()
}

// I141
pub fn refused_credentials_keep_connection_and_lock() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    set_password(&mut world, "new");
    change(&mut world, 0, "wrong");
    let warned = warnings(&world, 0);
    demand(
        matches!(&warned[..], [Warning::CredentialsFailed { .. }, _, _]),
        &format!("warnings: {warned:?}"),
    )?;
    demand(world.clients[0].engine.stats(world.local(0)).reconnects() == 0, "a connection ended")?;
    demand(matches!(extend(&mut world, 0, lock, ms(10_000))?, Outcome::Extend(Ok(_))), "no extension")?;
    change(&mut world, 0, "new");
    demand(warnings(&world, 0).is_empty(), "the warning stays")?;
    verdict(&mut world)
}

pub fn new_credentials_reach_subscribed_connections() -> Verdict {
    let mut world = world(3, 2, |builder| builder.ask_holder(false).retry_delay(ms(5000)..=ms(5000)));
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    world.submit_acquire(1, KEY, ms(10_000), ms(60_000)).expect("room");
    world.run_for(100 * MS);
    set_password(&mut world, "new");
    change(&mut world, 1, "new");
    demand(warnings(&world, 1).is_empty(), &format!("{:?}", warnings(&world, 1)))?;
    let released = world.now;
    world.submit_release(0, lock, false);
    outcome(&mut world, 1)?;
    demand(world.now - released < SECOND, "the release was not notified")
}

// I142
pub fn credentials_that_change_in_a_handshake_arrive() -> Verdict {
    let mut world = unconnected(1, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world.add_client(Clock::new(0, 0), 0);
    world.run_until(SECOND, |world| world.clients[0].engine.owed_count(id(0)) > 0);
    // Its refusal shows that it arrived.
    change(&mut world, 0, "wrong");
    demand(warnings(&world, 0).len() == 1, "they did not arrive")
}

tests!(
    refused_credentials_keep_connection_and_lock,
    new_credentials_reach_subscribed_connections,
    credentials_that_change_in_a_handshake_arrive,
);
