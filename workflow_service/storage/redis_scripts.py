"""What Redis does in one go: the scripts, each of which touches the keys of one hash slot only.

A script that changes episodes is given its bucket's common keys first, and how events are numbered: by a count, of which so many
events are kept (the one bucket of a single server), or by the server's clock, with the position up to which old events may go (a
bucket of a cluster, whose events are numbered anew in the feed that all buckets share). It answers with the bucket's last
position before and after, and what it did. A head is read and written as `redis_codec.head_text` says.
"""

from __future__ import annotations

_BUCKET = """
local AT, EVENTS, ACTIVE, ENDED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local KEEP, FLOOR = tonumber(ARGV[1]), ARGV[2]

local function text(number) return string.format('%.0f', number) end

local before = tonumber(redis.call('GET', AT) or '0')
local at = before
if KEEP == 0 then
  local now = redis.call('TIME')
  at = math.max(at, now[1] * 1000000 + now[2])
end
local made = {}

local function emit(event)
  at = at + 1
  made[#made + 1] = event
  return text(at)
end

local function done(result)
  if #made == 0 then return {text(before), text(before), result} end
  local floor = KEEP == 0 and FLOOR or text(math.max(0, at - KEEP))
  redis.call('SET', AT, text(at))
  redis.call('XADD', EVENTS, 'MINID', '~', floor, text(at) .. '-0', 'n', #made, 'e', table.concat(made))
  return {text(before), text(at), result}
end

-- deleted, state, end of the lease, last change, total, step and hash
local function split(head)
  return string.match(head, '^%d*:(%d):(%d):(%-?%d+):(%-?%d+):([^:]*):(.*)$')
end

local function event_of(kind, state, step, time, id)
  return table.concat({kind, state, step, time, #id, id}, ' ')
end
"""

APPEND = (
    _BUCKET
    + """
-- KEYS: head and log of each step. ARGV: each step, packed.
local passed = {}
for i = 3, #ARGV do
  local step, head_key = ARGV[i], KEYS[2 * i - 1]
  local head = redis.call('GET', head_key)
  passed[i - 2] = '0'
  if head then
    local fence_size, body_size, event_size, from = struct.unpack('>I4I4I4', step)
    local fence = string.sub(step, from, from + fence_size - 1)
    local deleted, state, expire, _, _, base = split(head)
    if base == fence and deleted == '0' and state == '1' then
      from = from + fence_size
      local body = string.sub(step, from, from + body_size - 1)
      local _, new_state, new_expire, now = split(body)
      if tonumber(expire) > tonumber(now) then
        from = from + body_size
        local event = string.sub(step, from, from + event_size - 1)
        redis.call('SET', head_key, emit(event) .. body)
        redis.call('RPUSH', KEYS[2 * i], string.sub(step, from + event_size))
        if new_state ~= '1' then
          local id = string.match(event, '^%d+ %d+ %d+ %-?%d+ %d+ (.*)$')
          redis.call('ZREM', ACTIVE, id)
          redis.call('ZADD', ENDED, new_expire, id)
        elseif tonumber(new_expire) < tonumber(expire) then
          -- A longer lease need not be written here, only found out by who looks for those that have run out.
          redis.call('ZADD', ACTIVE, 'LT', new_expire, string.match(event, '^%d+ %d+ %d+ %-?%d+ %d+ (.*)$'))
        end
        passed[i - 2] = '1'
      end
    end
  end
end
return done(table.concat(passed))
"""
)

CREATE = (
    _BUCKET
    + """
-- KEYS: the list of all, pending, decided; then of each episode head, start, log, promise and its lists.
-- ARGV: what to do, token, plan; then of each episode id, member, head, event, start, how many lists and steps it has, the steps.
local LISTED, PENDING, DECIDED = KEYS[5], KEYS[6], KEYS[7]
local what, token, plan = ARGV[3], ARGV[4], ARGV[5]

local episodes, k, a = {}, 8, 6
while a <= #ARGV do
  local lists, steps = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
  episodes[#episodes + 1] = {k = k, a = a, lists = lists, steps = steps}
  k, a = k + 4 + lists, a + 7 + steps
end

if what == 'commit' then
  if redis.call('HEXISTS', PENDING, token) == 0 then return done('gone') end
else
  for _, e in ipairs(episodes) do
    if redis.call('EXISTS', KEYS[e.k]) == 1 then return done('taken') end
  end
  for _, e in ipairs(episodes) do
    if redis.call('EXISTS', KEYS[e.k + 3]) == 1 then return done('held') end
  end
  for _, e in ipairs(episodes) do
    redis.call('SET', KEYS[e.k + 1], ARGV[e.a + 4])
    for i = 1, e.steps do redis.call('RPUSH', KEYS[e.k + 2], ARGV[e.a + 6 + i]) end
  end
end

if what == 'prepare' then
  for _, e in ipairs(episodes) do redis.call('SET', KEYS[e.k + 3], token .. ARGV[e.a + 2]) end
  redis.call('HSET', PENDING, token, redis.call('TIME')[1] .. ' ' .. plan)
  return done('prepared')
end

for _, e in ipairs(episodes) do
  local id, member, body = ARGV[e.a], ARGV[e.a + 1], ARGV[e.a + 2]
  local _, state, expire = split(body)
  redis.call('SET', KEYS[e.k], emit(ARGV[e.a + 3]) .. body)
  redis.call('ZADD', state == '1' and ACTIVE or ENDED, expire, id)
  redis.call('ZADD', LISTED, 0, member)
  for i = 1, e.lists do redis.call('ZADD', KEYS[e.k + 3 + i], 0, member) end
end
if what == 'commit' then
  for _, e in ipairs(episodes) do redis.call('DEL', KEYS[e.k + 3]) end
  redis.call('HDEL', PENDING, token)
  if plan ~= '' then redis.call('HSET', DECIDED, token, redis.call('TIME')[1] .. ' ' .. plan) end
end
return done('created')
"""
)

ABORT = """
-- KEYS: pending, decided; then of each episode start, log and promise. ARGV: token, how old it must be in seconds.
local plan = redis.call('HGET', KEYS[1], ARGV[1])
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 'decided' end
if not plan then return 'gone' end
if redis.call('TIME')[1] - string.match(plan, '^%d+') < tonumber(ARGV[2]) then return 'young' end
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
redis.call('HDEL', KEYS[1], ARGV[1])
return 'aborted'
"""

FINISH = (
    _BUCKET
    + """
-- KEYS: the head. ARGV: id, the state, the event's kind, now, the end, 1 where only if the lease has run out.
local head = redis.call('GET', KEYS[5])
if not head then return done('0') end
local id, new_state, kind, now, new_expire = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local deleted, state, expire, _, total, base = split(head)
if deleted ~= '0' or state ~= '1' or (ARGV[8] == '1' and tonumber(expire) > tonumber(now)) then return done('0') end
local position = emit(event_of(kind, new_state, string.match(base, '^%d+'), now, id))
redis.call('SET', KEYS[5], table.concat({position, '0', new_state, new_expire, now, total, base}, ':'))
redis.call('ZREM', ACTIVE, id)
redis.call('ZADD', ENDED, new_expire, id)
return done('1')
"""
)

RENEW = (
    _BUCKET
    + """
-- KEYS: the heads. ARGV: now, then id and end of each.
local renewed = {}
for i = 1, #KEYS - 4 do
  local head, id, new_expire = redis.call('GET', KEYS[4 + i]), ARGV[2 + 2 * i], ARGV[3 + 2 * i]
  renewed[i] = '0'
  if head then
    local deleted, state, expire, update, total, base = split(head)
    if deleted == '0' and state == '1' and tonumber(expire) > tonumber(ARGV[3]) then
      local position = string.match(head, '^%d+')
      redis.call('SET', KEYS[4 + i], table.concat({position, '0', '1', new_expire, update, total, base}, ':'))
      redis.call('ZADD', ACTIVE, new_expire, id)
      renewed[i] = '1'
    end
  end
end
return done(table.concat(renewed))
"""
)

DELETE = (
    _BUCKET
    + """
-- KEYS: head, start, log, then the lists. ARGV: id, now, the end, member, the start that the lists were read from.
local head = redis.call('GET', KEYS[5])
if not head then return done('0') end
if redis.call('GET', KEYS[6]) ~= ARGV[7] then return done('again') end
local id, now, new_expire, member = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local deleted, state, _, _, total, base = split(head)
if deleted ~= '0' then return done('0') end
local position = emit(event_of('5', state, string.match(base, '^%d+'), now, id))
redis.call('SET', KEYS[5], table.concat({position, '1', state, new_expire, now, total, base}, ':'))
redis.call('UNLINK', KEYS[7])
redis.call('ZREM', ACTIVE, id)
redis.call('ZADD', ENDED, new_expire, id)
for i = 8, #KEYS do redis.call('ZREM', KEYS[i], member) end
return done('1')
"""
)

PURGE = (
    _BUCKET
    + """
-- KEYS: of each episode head, start, log, then its lists. ARGV: now; then of each id, member, how many lists it has.
local k, gone = 5, 0
for a = 4, #ARGV, 3 do
  local lists = tonumber(ARGV[a + 2])
  local head = redis.call('GET', KEYS[k])
  local deleted, state, expire
  if head then deleted, state, expire = split(head) end
  -- The index says whom to look at; only the head says that an episode has ended and had its time.
  if expire and (deleted == '1' or state ~= '1') and tonumber(expire) <= tonumber(ARGV[3]) then
    redis.call('UNLINK', KEYS[k], KEYS[k + 1], KEYS[k + 2])
    redis.call('ZREM', ENDED, ARGV[a])
    for i = 1, lists do redis.call('ZREM', KEYS[k + 2 + i], ARGV[a + 1]) end
    gone = gone + 1
  end
  k = k + 3 + lists
end
return done(gone)
"""
)

REINDEX = (
    _BUCKET
    + """
-- KEYS: the heads. ARGV: their ids. Puts each where its head says that it belongs.
for i = 1, #KEYS - 4 do
  local head, id = redis.call('GET', KEYS[4 + i]), ARGV[2 + i]
  local deleted, state, expire
  if head then deleted, state, expire = split(head) end
  local running = state == '1' and deleted == '0'
  if head and running then redis.call('ZADD', ACTIVE, expire, id) else redis.call('ZREM', ACTIVE, id) end
  if head and not running then redis.call('ZADD', ENDED, expire, id) else redis.call('ZREM', ENDED, id) end
end
return done('1')
"""
)

PAGE = """
-- KEYS: last position, events, through. ARGV: position, how many, how many are kept.
-- Answers with the position up to which events are gone, then id and events of each chunk.
local at = tonumber(redis.call('GET', KEYS[1]) or '0')
local through = math.max(tonumber(redis.call('GET', KEYS[3]) or '0'), at - tonumber(ARGV[3]))
local after, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = {string.format('%.0f', through)}
if after < through or limit < 1 then return found end
local from, seen = string.format('%.0f', after + 1), 0
while seen < limit do
  local chunks = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', 16)
  for _, chunk in ipairs(chunks) do
    local last = tonumber(string.match(chunk[1], '^%d+'))
    seen = seen + math.min(tonumber(chunk[2][2]), last - after)
    found[#found + 1] = chunk[1]
    found[#found + 1] = chunk[2][4]
    from = '(' .. chunk[1]
    if seen >= limit then break end
  end
  if #chunks < 16 then break end
end
return found
"""

FORGET = """
-- KEYS: events, through, last positions of ended episodes. ARGV: a position, then ids of ended episodes.
-- Events up to that position, and up to the last of each of these episodes, are no longer kept.
local through = tonumber(redis.call('GET', KEYS[2]) or '0')
local before = through
through = math.max(through, tonumber(ARGV[1]))
for i = 2, #ARGV do
  through = math.max(through, tonumber(redis.call('HGET', KEYS[3], ARGV[i]) or '0'))
  redis.call('HDEL', KEYS[3], ARGV[i])
end
if through > before then
  redis.call('SET', KEYS[2], string.format('%.0f', through))
  redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f', through + 1))
end
return 1
"""

FEED = """
-- KEYS: the feed's last position, its events, up to where each bucket was moved, last positions of ended episodes.
-- ARGV: how many events are kept, how many buckets, of each where it was moved to and will be; then bucket and event of each.
-- Moves events of buckets to the feed, unless another did. Answers with the feed's last position and who was elsewhere, and where.
local function text(number) return string.format('%.0f', number) end
local at = tonumber(redis.call('GET', KEYS[1]) or '0')
local made, moved, elsewhere, a = {}, {}, {}, 3
for _ = 1, tonumber(ARGV[2]) do
  local bucket, expected = ARGV[a], ARGV[a + 1]
  local now = redis.call('HGET', KEYS[3], bucket) or '0'
  if now == expected then
    moved[bucket] = ARGV[a + 2]
  else
    elsewhere[#elsewhere + 1] = bucket
    elsewhere[#elsewhere + 1] = now
  end
  a = a + 3
end
for i = a, #ARGV, 2 do
  local event = ARGV[i + 1]
  if moved[ARGV[i]] then
    at = at + 1
    made[#made + 1] = event
    local kind, state, id = string.match(event, '^(%d+) (%d+) %d+ %-?%d+ %d+ (.*)$')
    if state ~= '1' or kind == '5' then redis.call('HSET', KEYS[4], id, text(at)) end
  end
end
for bucket, position in pairs(moved) do redis.call('HSET', KEYS[3], bucket, position) end
if #made > 0 then
  redis.call('SET', KEYS[1], text(at))
  local floor = text(math.max(0, at - tonumber(ARGV[1])))
  redis.call('XADD', KEYS[2], 'MINID', '~', floor, text(at) .. '-0', 'n', #made, 'e', table.concat(made))
end
return {text(at), elsewhere}
"""

DOCUMENT = """
-- KEYS: the document. ARGV: the revision that it must have, the next one, the text.
local found = redis.call('GET', KEYS[1])
if (found and string.match(found, '^%d+') or '0') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. ARGV[3])
return 1
"""

CLAIM = """
-- KEYS: the schema's key. ARGV: what is written there. Answers with what is there, and writes it where there is nothing.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'none' and kind ~= 'string' then return 'a ' .. kind end
local found = redis.call('GET', KEYS[1])
if found then return found end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
"""
