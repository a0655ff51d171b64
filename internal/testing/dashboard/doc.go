// SPDX-License-Identifier: Apache-2.0

// Dashboard draws docs/dashboard.png, for `make dashboard`: the panels of the dashboard for
// Grafana, with the React components that Grafana itself draws its panels with (@grafana/ui
// of npm, which has the licence Apache-2.0, unlike Grafana).
//
//	dashboard -data FILE -o FILE [-dashboard FILE] [-work DIRECTORY]
//
// FILE of -data has what a Prometheus server answered to the queries: TestDashboard of package
// e2e writes it. The folder page is the page that shows the panels. The command installs the
// modules of its package.json with npm in the directory of -work, without their scripts, packs
// all into one file with esbuild, and takes a picture with Chromium.
package main
