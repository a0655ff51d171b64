// SPDX-License-Identifier: Apache-2.0
'use strict';

// The page asks for the state again and again while somebody can see it. Texts of the
// state become text nodes, never HTML. The picture is parsed as an SVG document.

let every = 2000; // ms from an answer to the next question: the state says it
const patience = 15000; // ms until a question counts as not answered
const narrow = matchMedia('(max-width: 940px)'); // below, the wide picture would be too small to read
const at = (id) => document.getElementById(id);

let timer = 0;
let asking = false; // a question is under way
let again = false; // ask once more after it
let paused = false;
let failedSince = null;
let version = null;
let picture = '';
const processes = new Map(); // of each stack: the process, and what it has counted
const why = new Map(); // the reasons that the state explains: the name of each text
let cures = ''; // what is shown of them
let replaced = null; // the newest stack that is another process now

const clock = (date) => date.toLocaleTimeString([], {hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false});

async function ask() {
  clearTimeout(timer);
  if (asking) {
    again = true;
    return;
  }
  if (document.hidden || paused) {
    return;
  }
  asking = true;
  again = false;
  try {
    const q = new URLSearchParams({layout: narrow.matches ? 'narrow' : 'wide', filter: at('filter').value});
    const answer = await fetch('state.json?' + q, {signal: AbortSignal.timeout(patience), cache: 'no-store', credentials: 'omit'});
    const state = await answer.json();
    if (!answer.ok) {
      throw new Error(state.error || answer.statusText);
    }
    if (!Array.isArray(state.stacks)) {
      throw new SyntaxError();
    }
    if (!paused) {
      show(state);
    }
  } catch (e) {
    fail(e);
  } finally {
    asking = false;
    timer = setTimeout(ask, again ? 0 : every);
  }
}

function fail(e) {
  failedSince ??= new Date();
  let why = e.message;
  if (e instanceof TypeError) {
    why = 'nobody answers at this address';
  } else if (e.name === 'TimeoutError') {
    why = 'no answer in time';
  } else if (e instanceof SyntaxError) {
    why = 'the answer is not from smcr';
  }
  setText(at('trouble'), `No state from the stack since ${clock(failedSince)}: ${why}. ` +
    (version === null ? '' : 'What you see is older. ') + 'The page tries again by itself.');
  at('trouble').hidden = false;
  document.body.classList.add('stale');
  setText(at('time'), '');
  status('No answer', 'trouble-mark');
}

function show(state) {
  if (version !== null && version !== state.version) {
    location.reload(); // another release answers now
    return;
  }
  version = state.version;
  every = state.every;
  failedSince = null;
  document.body.classList.remove('stale');
  document.body.classList.toggle('one-stack', state.stacks.length < 2);
  notice(state.stacks);
  at('content').hidden = false;
  const hosts = [...new Set(state.stacks.map((s) => s.host))].join(', ') || 'this host';
  setText(at('heading'), 'SMC on ' + hosts);
  document.title = 'SMC on ' + hosts;
  setText(at('version'), ('smcr ' + version).trim());
  setText(at('time'), 'at ' + clock(new Date(state.time)));
  status('Live', 'live');
  figures(state.stacks);
  draw(state.picture);
  explain(state.reasons);
  const many = (n, one) => n === 1 ? '1 ' + one : n + ' ' + one + 's';
  fill('links', state.links, (t) => t.total === 0 ? 'There are no links.' : t.rows.length < t.total ? `The first ${t.rows.length} of ${t.total} links.` : '');
  fill('connections', state.connections, (t) => {
    if (t.total === 0) {
      return 'There are no connections.';
    }
    if (t.matching === 0) {
      return `None of ${many(t.total, 'connection')} matches.`;
    }
    const of = t.matching < t.total ? `${t.matching} of ${many(t.total, 'connection')}` : many(t.total, 'connection');
    return t.rows.length < t.matching ? `${of}. The first ${t.rows.length} are shown, ${t.matching - t.rows.length} are not: use the filter.` : of + '.';
  });
  fill('fallbacks', state.fallbacks, (t) => t.total === 0 ? 'None has, since the stack was started.' : 'Since the stack was started.');
}

// notice says for a while that a stack is another process now. After a restart, its counters
// began again; if the process has taken over, they go on. Between the two processes, the
// other stacks may have answered without this one. A stack that ends is not replaced: the
// next one has its name.
function notice(stacks) {
  for (const {stack, pid, counted} of stacks.filter((s) => !s.stack.startsWith('ending-'))) {
    const before = processes.get(stack);
    processes.set(stack, {pid, counted});
    if (before !== undefined && before.pid !== pid) {
      const takenOver = before.counted > 0 && counted >= before.counted;
      replaced = {time: new Date(), what: takenOver ?
        (time) => `Another process has taken over the ${stack} stack at ${time}. Its counters go on.` :
        (time) => `The ${stack} stack was restarted at ${time}. Its counters began again.`};
    }
  }
  const old = replaced !== null && new Date() - replaced.time > 60000;
  if (replaced === null || old) {
    at('trouble').hidden = true;
    return;
  }
  setText(at('trouble'), replaced.what(clock(replaced.time)));
  at('trouble').hidden = false;
}

function status(text, mark) {
  setText(at('status'), text);
  at('mark').className = 'mark ' + mark;
}

// setText changes a text only if it is another one, so that a selection stays.
function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

// figures shows the numbers of each stack.
function figures(stacks) {
  const list = stacks.map((s) => [s.stack, [
    ['Over SMC-R now', s.smcr], ['Over SMC-D now', s.smcd || null], ['Became TCP, open now', s.tcp],
    ['Became TCP since start', s.became_tcp], ['Failed handshakes since start', s.errors || null],
    ['Sent now', s.sent || '–'], ['Received now', s.received || '–'], ['Peers now', s.peers], ['Link groups now', s.groups],
  ].filter(([, value]) => value !== null)]);
  const shape = JSON.stringify(list.map(([name, f]) => [name, f.map(([label]) => label)]));
  const root = at('stacks');
  if (root.dataset.shape !== shape) {
    root.dataset.shape = shape;
    root.replaceChildren(...list.flatMap(([name, f]) => {
      const dl = make('dl', 'figures');
      for (const [label] of f) {
        const div = make('div', '');
        div.append(make('dt', '', label), make('dd', ''));
        dl.append(div);
      }
      return list.length > 1 ? [make('h2', '', name + ' stack'), dl] : [dl];
    }));
  }
  const values = list.flatMap(([, f]) => f.map(([, value]) => String(value)));
  root.querySelectorAll('dd').forEach((dd, i) => setText(dd, values[i]));
}

function make(name, className, text) {
  const e = document.createElement(name);
  e.className = className;
  if (text !== undefined) {
    e.textContent = text;
  }
  return e;
}

// explain shows what to do about each reason that the tables have.
function explain(reasons) {
  why.clear();
  for (const r of reasons) {
    why.set(r.text, 'why-' + r.name);
  }
  at('cures-section').hidden = reasons.length === 0;
  const text = JSON.stringify(reasons);
  if (text === cures) {
    return;
  }
  cures = text;
  at('cures').replaceChildren(...reasons.map((r) => {
    const section = make('section', '');
    section.id = 'why-' + r.name;
    const list = make('ul', '');
    list.append(...r.cure.map((step) => make('li', '', step)));
    section.append(make('h3', '', `${r.title} (${r.name}, ${r.code})`), make('p', '', r.cause), list);
    return section;
  }));
}

// setReasons is setText for reasons: each leads to what to do about it.
function setReasons(node, text) {
  if (node.textContent === text) {
    return;
  }
  const line = make('span', '');
  text.split('; peer: ').forEach((part, i) => {
    if (i > 0) {
      line.append('; peer: ');
    }
    if (!why.has(part)) {
      line.append(part);
      return;
    }
    const link = make('a', '', part);
    link.href = '#' + why.get(part);
    line.append(link);
  });
  node.replaceChildren(...(text === '' ? [] : [line]));
}

function draw(svg) {
  if (svg === picture) {
    return;
  }
  const parsed = new DOMParser().parseFromString(svg, 'image/svg+xml').documentElement;
  if (parsed.localName !== 'svg') {
    throw new Error('the picture is not SVG');
  }
  picture = svg;
  at('picture').classList.toggle('narrow', parsed.viewBox.baseVal.width < 500);
  at('picture').replaceChildren(document.importNode(parsed, true));
}

// fill writes rows into a table. It keeps rows and cells that are there.
function fill(id, table, note) {
  const root = at(id);
  setText(root.caption, note(table));
  root.classList.toggle('empty', table.rows.length === 0);
  const heads = [...root.tHead.rows[0].cells];
  const body = root.tBodies[0];
  while (body.rows.length > table.rows.length) {
    body.deleteRow(-1);
  }
  table.rows.forEach((row, i) => {
    let tr = body.rows[i];
    if (!tr) {
      tr = body.insertRow();
      tr.setAttribute('role', 'row');
      for (const head of heads) {
        const td = tr.insertCell();
        td.className = head.className;
        td.dataset.label = head.textContent;
        td.setAttribute('role', 'cell');
      }
    }
    row.forEach((text, j) => (heads[j].classList.contains('reason') ? setReasons : setText)(tr.cells[j], text));
  });
}

at('pause').addEventListener('click', () => {
  paused = !paused;
  at('pause').setAttribute('aria-pressed', String(paused));
  setText(at('pause'), paused ? 'Continue' : 'Pause');
  if (paused) {
    status('Paused', '');
  }
  ask();
});
let typing = 0;
at('filter').addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(ask, 250);
});
document.addEventListener('visibilitychange', ask);
narrow.addEventListener('change', ask);
// Blocks are no tables for assistive technology, unless their roles say so.
for (const table of document.querySelectorAll('table')) {
  table.setAttribute('role', 'table');
}
ask();
