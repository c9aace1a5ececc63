--- finished.json in a run's output folder says of which step the student is, and what was validated
--- after it, so that a run which is started again after its end finds nothing left to do. It is
--- removed before a next step.
local C = require 'moonstill.C'
local changes = require 'moonstill.run.changes'
local json = require 'moonstill.base.json'

local M = {}

local function marker_path(run) return run.output .. '/finished.json' end

local function marker_text(run)
  local path = marker_path(run)
  if C.ms_path_kind(path) ~= 1 then return nil end
  local ok, marker = pcall(json.read, path)
  return ok and json.is_object(marker) and json.encode(marker) or nil
end

local function read_marker(run)
  local text = run.ranks:write(marker_text, run)
  return text and json.decode(text, 'finished.json')
end

-- What a recipe gives to `run.open` beside its settings.
local function given(run)
  return { ['the student'] = run.student:info().path, carry = run.carry }
end

--- An error when the student of a finished run was made with other settings than these: whoever
--- asks for them does not want that student.
function M.check(run)
  local marker, resume = read_marker(run), run.cfg.resume
  if not marker or not marker.config or resume == false or type(resume) == 'string' and
    resume ~= 'auto' then return end
  local words = {}
  for _, list in ipairs { changes.between(run.cfg, marker.config),
    changes.between(given(run), marker.given or given(run)) } do
    for _, c in ipairs(list) do
      words[#words + 1] = ('%s = %s, which is %s now'):format(c.key, c.old, c.now)
    end
  end
  if marker.data and run.fingerprint and marker.data ~= run.fingerprint then
    words[#words + 1] = 'other training data'
  end
  if #words == 0 then return end
  error(('run: %s holds a finished run with %s: give another output, or resume=false to begin anew')
    :format(run.output, table.concat(words, '; ')), 0)
end

local function remove_marker(run)
  if C.ms_path_kind(marker_path(run)) == 0 then return end
  local ok, why = os.remove(marker_path(run)) -- a file, or an empty folder
  if not ok then error(why, 0) end
end

local function student_kind(run) return C.ms_path_kind(run.student_path .. '/config.json') end

--- Makes the run a finished one when its student is there, for its last step; otherwise there is
--- something left to do.
function M.look(run)
  local marker, state = read_marker(run), run.state
  if marker and marker.step == state.step and state.step >= state.total
    and run.ranks:write(student_kind, run) == 1 then
    run.finished, run.validated = true, marker.validations or {}
    run:say(('finished already after %d steps: the student is in %s; resume=false begins anew')
      :format(state.step, run.student_path))
  else
    run.ranks:write(remove_marker, run)
  end
end

--- Writes finished.json, on the rank that writes.
function M.write(run)
  local list, last = {}, run.last_validations
  for _, v in ipairs(last and last.step == run.state.step and last or {}) do list[#list + 1] = v end
  json.write(marker_path(run), { step = run.state.step, student = 'student',
    config = run.cfg, given = given(run), data = run.fingerprint,
    validations = json.array(list) }, { indent = 2 })
end

return M
