"""The test files that mutants in SQL name."""

AGREEMENT = "tests/journal/dispatch/test_agreement.py"
APPEND_ONLY = "tests/journal/storage/test_append_only.py"
CLAIMING = "tests/journal/claims/test_claiming.py"
CONTRACT = "tests/journal/storage/test_contract.py"
CUTS = "tests/journal/storage/test_cuts.py"
DEAD_LETTERS = "tests/journal/claims/test_dead_letters.py"
DELETION = "tests/journal/storage/test_deletion.py"
DURABILITY = "tests/journal/storage/test_durability.py"
FAST = (
    "tests/journal/fast_settlement/test_members.py",
    "tests/journal/fast_settlement/test_written_facts.py",
    "tests/journal/fast_settlement/test_exceptions.py",
)
FAST_HISTORIES = "tests/journal/fast_settlement/test_histories.py"
FAST_RACES = "tests/journal/fast_settlement/test_races.py"
FIDELITY = "tests/journal/storage/test_fidelity.py"
GROUPS = ("tests/journal/settlement/test_groups.py", "tests/journal/settlement/test_group_locks.py")
LANES = "tests/journal/queries/test_lanes.py"
LEASES = "tests/journal/claims/test_leases.py"
LOCKED = "tests/journal/dispatch/test_locked_runs.py"
LOCK_ORDER = "tests/journal/concurrency/test_lock_order.py"
LOST_ANSWERS = "tests/journal/dispatch/test_lost_answers.py"
MARKS = "tests/journal/claims/test_lane_marks.py"
NEW_RUNS = "tests/journal/dispatch/test_new_runs.py"
NEW_THREADS = "tests/journal/concurrency/test_new_threads.py"
PLANNING = "tests/journal/settlement/test_planning.py"
QUERIES = (
    "tests/journal/queries/test_runs.py",
    "tests/journal/queries/test_listing.py",
    "tests/journal/queries/test_queues.py",
    "tests/journal/queries/test_cron_windows.py",
)
REBUILD = "tests/journal/views/test_rebuild.py"
REPAIR = "tests/journal/queries/test_repair.py"
SETTLING = "tests/journal/settlement/test_settling.py"
SHARED = "tests/journal/concurrency/test_shared_threads.py"
STANDBY = "tests/journal/storage/test_standby.py"
START_TEMPLATES = "tests/journal/dispatch/test_start_templates.py"
SUSPECTS = "tests/journal/claims/test_suspects.py"
SUSPENDED = "tests/journal/concurrency/test_suspended_process.py"
UPGRADE = "tests/journal/schema/test_upgrade.py"
VERIFY = "tests/journal/views/test_verify.py"
VIEW_HISTORIES = "tests/journal/views/test_histories.py"
VIEW_RULES = "tests/journal/views/test_rules.py"

CARD_CLAIMS = ("tests/backlog/test_claiming.py", "tests/backlog/test_finishing.py")
CARD_CREATION = "tests/backlog/test_creating.py"
CARD_DURABILITY = ("tests/backlog/test_durability.py", "tests/backlog/test_rebuild.py")
CARD_HISTORIES = "tests/backlog/test_histories.py"
CARD_RACES = "tests/backlog/test_races.py"
