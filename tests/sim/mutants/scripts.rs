//! Deliberate defects of the Lua scripts. The engine always sends the right scripts; the tests' masters break
//! them when they run.

/// A defect of scripts: a piece of text and its replacement.
#[derive(Debug, Clone, Copy)]
pub struct ScriptDefect {
    /// The defect's name.
    pub mutant: &'static str,
    /// Names of the scripts in `redlatch::scripts::SCRIPTS`.
    pub scripts: &'static [&'static str],
    /// Occurs once in each script.
    pub piece: &'static str,
    /// Replaces the piece.
    pub broken: &'static str,
}

const fn defect(
    mutant: &'static str,
    scripts: &'static [&'static str],
    piece: &'static str,
    broken: &'static str,
) -> ScriptDefect {
    ScriptDefect { mutant, scripts, piece, broken }
}

/// All defects.
pub const SCRIPT_DEFECTS: &[ScriptDefect] = {
    const FENCED_RELEASE: &[&str] = &["fenced_release_serve"];
    const SERVING: &[&str] = &["park", "unpark", "serve"];
    const GRANTING: &[&str] = &[
        "park",
        "unpark",
        "serve",
        "release_serve",
        "fenced_release_serve",
        "shared_release_serve",
        "force_unlock_serve",
    ];
    const FENCE: &str = "local largest = ";
    const NO_FENCE: &str = "redis.call('del', fence) do return end local largest = ";
    &[
        defect("BareDel", &["release"], "redis.call('get', key) == token", "true"),
        defect("BareDel", &["release_serve"], "redis.call('get', lock) ~= token", "false"),
        defect("BareDel", FENCED_RELEASE, "held == 'value' and holder == value if", "true if"),
        defect("BareExtension", &["extend"], "redis.call('get', key) == token", "true"),
        defect("SwapWithoutCompare", &["swap"], "redis.call('get', key) ~= old_token", "false"),
        defect("FenceLowered", FENCED_RELEASE, "largest and number > largest", "largest"),
        defect("FenceNotStrict", &["fenced_acquire"], "token <= largest", "token < largest"),
        defect("FenceDeleted", FENCED_RELEASE, FENCE, NO_FENCE),
        defect(
            "HeadUnchecked",
            &["park"],
            "local found = redis.pcall('zrange', call.queue, 0, 0, 'withscores')",
            "local found = call.own and {call.own, 0} or redis.pcall('zrange', call.queue, 0, 0, 'withscores')",
        ),
        defect(
            "UndoneGrantLeavesKey",
            GRANTING,
            "return true end undo(call, entry) if",
            "return true end if",
        ),
        defect(
            "EntryStaysGranted",
            GRANTING,
            "if redis.pcall('zrem', call.queue, member) ~= 1 then undo(call, entry) return nil end if is_own",
            "if is_own",
        ),
        defect(
            "PublishedUnwritten",
            GRANTING,
            "local refused = write(",
            "if not is_own then send(entry, entry.vote) end local refused = write(",
        ),
        defect("ReleaseServesNobody", &["release_serve"], "serve_behind(lock, queue, fence, 'none')", "{}"),
        defect(
            "ForcedServesNobody",
            &["force_unlock_serve"],
            "serve_behind(lock, queue, fence, 'none')",
            "{}",
        ),
        defect("FencedServesNobody", FENCED_RELEASE, "serve_behind(lock, queue, fence, 'none')", "{}"),
        defect(
            "ReaderServesNobody",
            &["shared_release_serve"],
            "answer(true, serve_behind(lock, queue, fence, held))",
            "answer(true, {})",
        ),
        defect(
            "UnparkServesNobody",
            &["unpark"],
            "answer(is_deleted, serve_behind(lock, queue, fence, held, holder, value))",
            "answer(is_deleted, {})",
        ),
        defect(
            "ReadersStopAfterFirst",
            GRANTING,
            "if is_granted == nil or is_granted and entry.mode ~= 'r' then",
            "if is_granted ~= false then",
        ),
        defect(
            "ReaderPassesQueue",
            &["shared_acquire_queue"],
            "if first and old_end_ms",
            "if false and old_end_ms",
        ),
        defect("GrantedReaderCutsShort", GRANTING, "math.max(end_ms, tonumber(last[2]) or 0)", "end_ms"),
        defect(
            "GrantLeavesFence",
            GRANTING,
            "if entry.mode == 'f' then local set",
            "if false then local set",
        ),
        defect("GrantBelowFence", GRANTING, "if token <= largest then return 1, largest end", ""),
        defect("SwapLeavesEntry", &["swap_parked"], "redis.pcall('zrem', queue, member)", ""),
        defect(
            "LateParkReplaces",
            &["park"],
            "(tonumber(string.sub(member, 25, 32)) or 0) > tonumber(round)",
            "false",
        ),
        defect("OldValueLeft", &["park"], "had_old, held = take_out(lock, held, holder, old, now_ms)", ""),
        defect("RungKeepsStay", GRANTING, "if entry.stay_end > call.now_ms + RUNG_MS then", "if false then"),
        defect("RingProlongs", GRANTING, "if entry.stay_end > call.now_ms + RUNG_MS then", "do"),
        defect(
            "TicketUnlimited",
            &["park"],
            "math.max(asked_us - SHIFT_MAX_US, math.min(tonumber(ticket), asked_us + SHIFT_MAX_US))",
            "tonumber(ticket)",
        ),
        defect("TicketMoved", &["park"], "now_us - waited_us", "now_us"),
        defect(
            "BriefEntryStays",
            &["park"],
            "if call.own and (refused or call.is_brief) then",
            "if call.own and refused then",
        ),
        defect(
            "WriterServedBesideReaders",
            GRANTING,
            "held == 'readers' and mode == 'r'",
            "held == 'readers'",
        ),
        defect(
            "ServedOverHolder",
            GRANTING,
            "if not is_free(call.held, entry.mode) then return 'stop' end",
            "",
        ),
        defect("DeadQueuesStay", &["park"], "redis.pcall('pexpire', queue, 2 * STAY_MAX_MS)", "1"),
        defect("DeadWaitersStay", SERVING, "if not is_own and is_over(member, now_ms) then", "if false then"),
        defect(
            "ForeignQueueTaken",
            &["park"],
            "if first[1] and string.sub(first[1], 1, 11) ~= MARK then",
            "if false then",
        ),
        defect(
            "ReaderBesideWriter",
            &["shared_acquire_queue"],
            "marker)) then return left_ms",
            "marker)) then return {ok='OK'}",
        ),
        defect(
            "ReadersCutShort",
            &["shared_acquire_queue"],
            "math.max(end_ms, last_end_ms or 0)",
            "now_ms + 1 + ttl_ms",
        ),
        defect("ReadersPurgedEarly", &["shared_acquire_queue"], "0, now_ms)", "0, now_ms + ttl_ms - 1)"),
        defect(
            "ForeignSetTaken",
            &["shared_acquire_queue"],
            "(kind ~= 'zset' or not redis.call('zscore', lock, marker))",
            "kind ~= 'zset'",
        ),
        defect(
            "LateReaderCutsShort",
            &["shared_acquire_queue"],
            "math.max(old_end_ms, now_ms + 1 + ttl_ms)",
            "now_ms + 1 + ttl_ms",
        ),
        defect(
            "SharedExtensionJoins",
            &["shared_extend"],
            "if not old_end_ms or tonumber(old_end_ms) <= now_ms then return 0 end",
            "",
        ),
        defect(
            "ExtendedReaderEndsKey",
            &["shared_extend"],
            "redis.call('zrange', lock, -1, -1, 'withscores')[2]",
            "now_ms + 1 + ttl_ms",
        ),
        defect(
            "ReaderEndsAll",
            &["shared_release_serve"],
            "local held = settle_readers(lock, now_ms)",
            "redis.call('del', lock) local held = 'none'",
        ),
        defect(
            "ReleasedReaderKeepsKey",
            &["shared_release_serve"],
            "redis.pcall('pexpireat', lock, last[2])",
            "",
        ),
        defect(
            "ForceDeletesAnyType",
            &["force_unlock_serve"],
            "then holder = redis.pcall('zscore'",
            "then do return redis.call('del', lock) end holder = redis.pcall('zscore'",
        ),
        defect(
            "AdoptionUncompared",
            &["adopt"],
            "if not has(lock, held, holder, old, now_ms) then return 0 end",
            "",
        ),
        defect("AdoptionLeavesValue", &["adopt"], "value = new}", "value = old}"),
        defect("AdoptedBelowFence", &["adopt"], "largest > tonumber(token)", "false"),
        defect(
            "ForeignFenceTaken",
            &["fenced_acquire"],
            "tonumber(string.match(redis.call('get', fence) or '0', '^%d+$'))",
            "tonumber(redis.call('get', fence) or 0)",
        ),
    ]
};
