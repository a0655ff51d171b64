// SPDX-License-Identifier: Apache-2.0

// Sql is a client of package database/sql whose connections to PostgreSQL are SMC-R.
//
//	hostA# smcr run -- setpriv --reuid=postgres --regid=postgres --init-groups \
//	         /usr/lib/postgresql/15/bin/postgres -D /var/lib/postgresql/15/main
//	hostB# sql 'postgres://user@hostA/database' 'select 42'
//
// The server is unmodified and runs under `smcr run`. The client has a stack of its own, and
// the driver (pgx) dials with it. Other drivers have such a function too: RegisterDialContext
// in go-sql-driver/mysql, DialOpen in lib/pq.
package main
