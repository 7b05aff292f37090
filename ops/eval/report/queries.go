package report

import (
	"strconv"
	"strings"
)

// Query is one question to ClickHouse: what is printed beside a table or plot, and works as it stands.
type Query struct {
	Name string `json:"name"`
	SQL  string `json:"sql"`
}

// The questions. {tenants} are the runs, {seed} is the report's.
var (
	queryRuns = Query{"runs", `
WITH [{tenants}] AS these
SELECT tenant, arm, seed, half, cap, personas, settings, base_model, outcome, sessions, updates, aligned_at, seconds
FROM evaluation_runs WHERE has(these, tenant) ORDER BY arm, seed, tenant`}

	queryAlignment = Query{"alignment", `
WITH [{tenants}] AS these
SELECT tenant, arm, seed, persona, aligned_at, sessions, censored
FROM evaluation_alignment WHERE has(these, tenant) ORDER BY arm, seed, tenant, persona`}

	queryFirstReplies = Query{"first_replies", `
WITH [{tenants}] AS these
SELECT arm, persona, phase, session_index AS session, count() AS replies, countIf(satisfied) AS satisfied, countIf(guard_passed) AS guard_passed,
    countIf(preference) AS preference
FROM evaluation_first_replies
WHERE has(these, tenant) AND phase IN ('live', 'control')
GROUP BY arm, persona, phase, session ORDER BY arm, persona, phase, session`}

	queryRates = Query{"rates", `
WITH [{tenants}] AS these
SELECT arm, seed, persona, phase, count() AS replies, countIf(satisfied) AS satisfied, countIf(guard_passed) AS guard_passed,
    countIf(preference) AS preference
FROM evaluation_first_replies
WHERE has(these, tenant) AND phase IN ('live', 'held_out', 'held_out_control')
GROUP BY arm, seed, persona, phase ORDER BY arm, seed, persona, phase`}

	queryGuard = Query{"guard", `
WITH [{tenants}] AS these
SELECT arm, phase, replaceRegexpAll(guard, '[0-9]+([.][0-9]+)?', 'N') AS reason, count() AS replies
FROM evaluation_first_replies
WHERE has(these, tenant) AND NOT guard_passed
GROUP BY arm, phase, reason ORDER BY arm, phase, replies DESC, reason LIMIT 5 BY arm, phase`}

	queryHints = Query{"hints", `
WITH [{tenants}] AS these
SELECT arm, count() AS turns, countIf(length(candidates) > 1) AS several
FROM hint_selected AS h INNER JOIN evaluation_runs AS r ON r.tenant = h.tenant
WHERE has(these, h.tenant)
GROUP BY arm ORDER BY arm`}

	queryDrift = Query{"drift", `
WITH [{tenants}] AS these
SELECT arm, session_index AS session, count() AS replies, avgIf(base_logprob, isFinite(base_logprob)) AS base_logprob, avg(tokens) AS tokens
FROM reply_evaluated
WHERE has(these, tenant) AND phase = 'live'
GROUP BY arm, session ORDER BY arm, session`}

	// The mean over pairs of replies A and B to different problems of the share of A's distinct word 3-grams that B has too. It is counted through the 3-grams:
	// each of A's is shared with as many others as have it. Any number is the same word, as in personas.Sameness. Means over pairs do not depend on how many replies there are.
	querySameness = Query{"sameness", `
WITH [{tenants}] AS these, replies AS
(
    SELECT tenant, arm, persona, event_id,
        multiIf(phase = 'held_out', 'held out', phase = 'held_out_control', 'held out, base', 2 * session_index <= last, 'first half', 'second half') AS part,
        arrayMap(w -> if(match(w, '^[0-9]+$'), '#', w), extractAll(lowerUTF8(reply), '[\\p{L}\\p{N}]+')) AS words,
        arrayDistinct(arrayMap(i -> arrayStringConcat(arraySlice(words, i, 3), ' '), range(1, greatest(length(words), 2) - 1))) AS grams
    FROM
    (
        SELECT *, max(session_index) OVER (PARTITION BY tenant, phase) AS last
        FROM evaluation_first_replies WHERE has(these, tenant) AND phase IN ('live', 'held_out', 'held_out_control')
    )
),
grams AS
(
    SELECT tenant, arm, part, persona, event_id, length(grams) AS size, arrayJoin(grams) AS gram FROM replies
),
counted AS
(
    SELECT *, count() OVER (PARTITION BY tenant, part, persona, gram) AS here, count() OVER (PARTITION BY tenant, part, gram) AS anywhere FROM grams
),
sizes AS
(
    SELECT tenant, part, persona, count() AS own, sum(own) OVER (PARTITION BY tenant, part) AS total FROM replies WHERE notEmpty(grams)
    GROUP BY tenant, part, persona
)
SELECT c.arm AS arm, c.persona AS persona, c.part AS part, uniqExact(c.tenant, c.event_id) AS replies,
    sum(if(s.own > 1, (c.here - 1) / (s.own - 1) / c.size, NULL)) / nullIf(uniqExactIf((c.tenant, c.event_id), s.own > 1), 0) AS sameness,
    sum(if(s.total > s.own, (c.anywhere - c.here) / (s.total - s.own) / c.size, NULL)) / nullIf(uniqExactIf((c.tenant, c.event_id), s.total > s.own), 0)
        AS across
FROM counted AS c
INNER JOIN sizes AS s ON s.tenant = c.tenant AND s.part = c.part AND s.persona = c.persona
GROUP BY arm, persona, part ORDER BY arm, persona, part`}

	queryUpdates = Query{"updates", `
WITH [{tenants}] AS these
SELECT r.arm AS arm, u.number AS ` + "`update`" + `, count() AS runs, countIf(u.skipped) AS skipped, avgIf(u.loss, isFinite(u.loss)) AS loss,
    avgIf(u.loss_dir, isFinite(u.loss_dir)) AS loss_dir, avgIf(u.kl, isFinite(u.kl)) AS kl, avgIf(u.entropy, isFinite(u.entropy)) AS entropy,
    avgIf(u.grad_norm, isFinite(u.grad_norm)) AS grad_norm, avgIf(u.reward_mean, isFinite(u.reward_mean)) AS reward_mean, avg(u.seconds) AS seconds
FROM
(
    SELECT tenant, ` + "`update`" + ` AS number, loss, loss_dir, kl, entropy, grad_norm, reward_mean, seconds,
        (tenant, ` + "`update`" + `) IN (SELECT tenant, ` + "`update`" + ` FROM update_skipped WHERE has(these, tenant)) AS skipped
    FROM updates WHERE has(these, tenant)
) AS u
INNER JOIN evaluation_runs AS r ON r.tenant = u.tenant
GROUP BY arm, u.number ORDER BY arm, u.number`}

	// A pair of first replies of one persona in consecutive sessions, and whose hints were trained between them.
	queryOffDiagonal = Query{"off_diagonal", `
WITH [{tenants}] AS these, taught AS
(
    SELECT u.tenant AS tenant, groupArray((u.number, extract(s.user, '[a-z]+$'))) AS hints
    FROM
    (
        SELECT tenant, ` + "`update`" + ` AS number, arrayJoin(sample_ids) AS sample_id FROM updates WHERE has(these, tenant) AND version IS NOT NULL
    ) AS u
    INNER JOIN (SELECT tenant, event_id, ifNull(user, '') AS user FROM sample_assembled WHERE has(these, tenant) AND notEmpty(ifNull(hint, ''))) AS s
        ON s.tenant = u.tenant AND s.event_id = u.sample_id
    GROUP BY tenant
),
steps AS
(
    SELECT tenant, arm, persona, preference, guard_passed, update_number,
        any(preference) OVER w AS preference_before, any(guard_passed) OVER w AS guard_before, any(update_number) OVER w AS update_before, count() OVER w AS earlier
    FROM evaluation_first_replies
    WHERE has(these, tenant) AND phase = 'live'
    WINDOW w AS (PARTITION BY tenant, persona ORDER BY session_index ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING)
)
SELECT arm, persona, teacher, count() AS pairs, countIf(preference_before) AS preference_before, countIf(preference) AS preference_after,
    countIf(guard_before) AS guard_before, countIf(guard_passed) AS guard_after
FROM
(
    SELECT s.*, arrayDistinct(arrayMap(h -> h.2, arrayFilter(h -> h.1 > ifNull(s.update_before, 0) AND h.1 <= ifNull(s.update_number, 0), t.hints))) AS between,
        arrayJoin(multiIf(has(between, s.persona), [s.persona], empty(between), [''], between)) AS teacher
    FROM steps AS s ANY LEFT JOIN taught AS t ON t.tenant = s.tenant
    WHERE s.earlier > 0
)
GROUP BY arm, persona, teacher ORDER BY arm, persona, teacher`}

	queryRehearsals = Query{"rehearsals", `
WITH [{tenants}] AS these
SELECT r.arm AS arm, uniqExact(r.tenant) AS runs, count() AS rehearsals, avg(length(e.sample_ids)) AS samples,
    avgIf(e.guard_before, isFinite(e.guard_before)) AS guard_before, avgIf(e.guard_after, isFinite(e.guard_after)) AS guard_after,
    countIf(e.guard_after < e.guard_before) AS guard_fell, countIf(e.from_version = e.to_version) AS without_update
FROM rehearsal_ended AS e INNER JOIN evaluation_runs AS r ON r.tenant = e.tenant
WHERE has(these, e.tenant) AND notEmpty(e.sample_ids) GROUP BY arm ORDER BY arm`}

	// The base model answers in the frozen arm and as the control; one seed's same problem counts once, and as satisfied when all its replies were.
	queryChance = Query{"chance", `
WITH [{tenants}] AS these
SELECT persona, countIf(satisfied) AS satisfied, count() AS replies
FROM
(
    SELECT persona, seed, phase IN ('held_out', 'held_out_control') AS held_out, session_index, min(satisfied) AS satisfied
    FROM evaluation_first_replies WHERE has(these, tenant) AND policy_version = 'base' AND (arm = 'frozen' OR phase IN ('control', 'held_out_control'))
    GROUP BY persona, seed, held_out, session_index
)
GROUP BY persona ORDER BY persona`}

	querySamples = Query{"samples", `
WITH [{tenants}] AS these
SELECT arm, persona, moment, seed, session, problem, reply, complaint, guard, satisfied
FROM
(
    SELECT arm, persona, seed, session_index AS session, problem, reply, complaint, guard, satisfied, event_id,
        multiIf(phase = 'held_out', 'after', phase = 'live' AND session_index = 1, 'before', held_out = 0 AND session_index = last, 'after', '') AS moment,
        sipHash64(toString(event_id), {seed}) AS lot
    FROM
    (
        SELECT *, countIf(phase = 'held_out') OVER (PARTITION BY tenant, persona) AS held_out, max(session_index) OVER (PARTITION BY tenant, persona, phase) AS last
        FROM evaluation_first_replies WHERE has(these, tenant) AND phase IN ('live', 'held_out')
    )
    WHERE moment != '' ORDER BY lot LIMIT 3 BY arm, persona, moment
)
ORDER BY arm, persona, moment DESC, lot`}
)

// of fills in the runs and the seed.
func (q Query) of(in Input) Query {
	q.SQL = strings.TrimSpace(strings.NewReplacer("{tenants}", quoted(in.Tenants), "{seed}", strconv.FormatUint(in.Seed, 10)).Replace(q.SQL))
	return q
}
