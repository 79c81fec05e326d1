"""Spark, in the run's own process, unless its master is set to another one."""

from squid_dagster import SparkResource

spark_resource = SparkResource()
