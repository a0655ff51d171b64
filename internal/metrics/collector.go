// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"smcr/internal/printable"
	"smcr/nl"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The limits of scrapes. Prometheus itself gives up after 10 s (scrape_timeout).
const (
	// maxScrapes is how many scrapes run at a time. Others get the status 503. No client has all of them: package httpserver
	// answers two requests of each at a time.
	maxScrapes = 16
	// scrapeTime is how long a scrape may take, and stackTime one stack of it.
	scrapeTime = 8 * time.Second
	stackTime  = 3 * time.Second
	// logEvery is the least time between two messages about stacks that do not answer.
	logEvery = time.Minute
)

// Handler returns the handler of GET requests for the metrics of the stacks of src, and of
// this process. It logs to log what a scrape does not find.
func Handler(src Source, log *slog.Logger) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(
		newCollector(src, log),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		// What is wrong with one metric must not hide the others.
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		MaxRequestsInFlight: maxScrapes,
	})
}

// collector implements prometheus.Collector for the stacks of a source.
type collector struct {
	src    Source
	log    *slog.Logger
	up     *prometheus.Desc
	stacks *prometheus.Desc
	descs  []*prometheus.Desc // of families

	mu   sync.Mutex
	said time.Time // when the log got the last message
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(src Source, log *slog.Logger) *collector {
	c := &collector{
		src: src, log: log,
		up: prometheus.NewDesc(namespace+"_up",
			"Whether the stack has answered: 1 if it has, otherwise 0, and then its other metrics are missing.", []string{"stack"}, nil),
		stacks: prometheus.NewDesc(namespace+"_stacks", "SMC stacks that there are in this network namespace.", nil, nil),
	}
	for i := range families {
		f := &families[i]
		c.descs = append(c.descs, prometheus.NewDesc(namespace+"_"+f.name, f.help, append([]string{"stack"}, f.labels...), nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.up
	ch <- c.stacks
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It asks the stacks.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	stacks := c.src(ctx)
	ch <- prometheus.MustNewConstMetric(c.stacks, prometheus.GaugeValue, float64(len(stacks)))
	for _, s := range stacks {
		up := 1.0
		if err := c.collect(ctx, s, ch); err != nil {
			up = 0
			c.say(s.Name, err)
		}
		ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, up, printable.Line(s.Name))
	}
}

// collect asks one stack and closes its Control.
func (c *collector) collect(ctx context.Context, s Stack, ch chan<- prometheus.Metric) error {
	if s.Err != nil {
		return s.Err
	}
	defer s.Control.Close()
	ctx, cancel := context.WithTimeout(ctx, stackTime)
	defer cancel()
	v, err := look(ctx, s.Control)
	if err != nil {
		return err
	}
	for i := range families {
		f, d := &families[i], c.descs[i]
		if f.histogram != nil {
			f.histogram(&v, func(b buckets, labels ...string) {
				ch <- prometheus.MustNewConstHistogram(d, b.count, b.sum, b.upTo, clean(s.Name, labels)...)
			})
			continue
		}
		f.read(&v, func(value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, f.kind, value, clean(s.Name, labels)...)
		})
	}
	return nil
}

// clean returns the values of the labels of a series. They must be UTF-8, and names of devices
// and versions come from elsewhere.
func clean(stack string, labels []string) []string {
	all := append([]string{stack}, labels...)
	for i := range all {
		all[i] = printable.Line(all[i])
	}
	return all
}

// say logs that a stack has not answered, not for each scrape.
func (c *collector) say(stack string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.said) >= logEvery {
		c.said = now
		c.log.Warn("a stack does not answer the scrape", "stack", stack, "err", err)
	}
}

// Shared returns a stack whose Control a scrape does not close.
func Shared(name string, c nl.Control) Stack { return Stack{Name: name, Control: open{c}} }

// open hides the Close of a Control.
type open struct{ nl.Control }

// Close implements nl.Control.
func (open) Close() error { return nil }
