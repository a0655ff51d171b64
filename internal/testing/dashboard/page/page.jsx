// SPDX-License-Identifier: Apache-2.0
//
// Draws the panels of the dashboard with the components of Grafana. esbuild replaces the
// modules dashboard and data, and sizes: see main.go.
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  createDataFrame, createTheme, dateTime, EventBusSrv, FieldType, getDisplayProcessor, ThemeContext,
} from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, PanelContextProvider, TimeSeries } from '@grafana/ui';
import dashboard from 'dashboard';
import data from 'data';

const { width, row, gap, margin } = sizes;
const theme = createTheme({ colors: { mode: 'dark' } });
const range = { from: dateTime(data.from * 1000), to: dateTime(data.to * 1000) };
range.raw = range;

// legend fills in the labels of a series.
const legend = (format, labels) => format.replace(/{{(\w+)}}/g, (_, name) => labels[name] ?? '').trim();

// matches tells whether an override is for a series.
function matches({ id, options }, name) {
  switch (id) {
    case 'byName': return options === name;
    case 'byRegexp': return new RegExp(options.replace(/^\/|\/$/g, '')).test(name);
  }
  throw new Error(`matcher ${id}`);
}

// frames makes a frame of each series of a panel.
function frames(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const color = defaults.color ?? { mode: panel.type === 'stat' ? 'thresholds' : 'palette-classic' };
  let n = 0;
  return panel.targets.flatMap((q) => (data.results[panel.id][q.refId] ?? []).map((series) => {
    const name = legend(q.legendFormat, series.metric);
    const config = { color, ...defaults, displayName: name, custom: { drawStyle: 'line', lineWidth: 1, lineInterpolation: 'linear', showPoints: 'never', pointSize: 5, axisPlacement: 'auto', spanNulls: false, ...defaults.custom } };
    for (const o of overrides.filter((o) => matches(o.matcher, name))) {
      for (const { id, value } of o.properties) {
        if (id.startsWith('custom.')) config.custom[id.slice(7)] = value;
        else config[id] = value;
      }
    }
    const frame = createDataFrame({ refId: q.refId, fields: [
      { name: 'Time', type: FieldType.time, config: {}, values: series.values.map(([t]) => t * 1000) },
      { name: 'Value', type: FieldType.number, config, labels: series.metric, values: series.values.map(([, v]) => v === 'NaN' ? null : +v) },
    ] });
    frame.fields.forEach((f) => { f.display = getDisplayProcessor({ field: f, theme }); });
    frame.fields[1].state = { seriesIndex: n++, displayName: name };
    return frame;
  }));
}

function Stat({ panel, width, height }) {
  const frame = frames(panel)[0];
  const [, y] = frame.fields;
  const last = y.values.findLast((v) => v !== null);
  const timeRange = range;
  return <BigValue width={width} height={height} theme={theme} value={y.display(last)} colorMode={panel.options.colorMode} graphMode={panel.options.graphMode}
    textMode="value" justifyMode="auto" sparkline={{ y, x: frame.fields[0], timeRange }} />;
}

function Graph({ panel, width, height }) {
  const all = frames(panel);
  return <TimeSeries frames={all} width={width} height={height} timeRange={range} timeZone="utc" structureRev={1}
    legend={{ ...panel.options.legend, showLegend: true, calcs: [] }} options={panel.options} />;
}

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const unit = (width + gap) / 24;
  const size = { left: x * unit, top: y * (row + gap), width: w * unit - gap, height: h * (row + gap) - gap };
  const at = { position: 'absolute', ...size };
  if (panel.type === 'row') return <div style={{ ...at, font: '500 16px Inter, sans-serif', lineHeight: `${row}px`, color: theme.colors.text.primary }}>⌄ {panel.title}</div>;
  const Kind = { stat: Stat, timeseries: Graph }[panel.type];
  return <div style={at}>
    <PanelChrome title={panel.title} width={size.width} height={size.height}>
      {(w, h) => <Kind panel={panel} width={w} height={h} />}
    </PanelChrome>
  </div>;
}

const context = { eventsScope: 'global', eventBus: new EventBusSrv(), app: 'dashboard', canAddAnnotations: () => false };
const rows = Math.max(...dashboard.panels.map((p) => p.gridPos.y + p.gridPos.h));
createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <PanelContextProvider value={context}>
      <GlobalStyles isExtensionSidebarOpen={false} />
      <div style={{ position: 'relative', width, height: rows * (row + gap), margin }}>
        {dashboard.panels.map((p) => <Panel key={p.id} panel={p} />)}
      </div>
    </PanelContextProvider>
  </ThemeContext.Provider>,
);
