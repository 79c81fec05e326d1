UPDATE {schema}.squid_schema SET version = 7;
